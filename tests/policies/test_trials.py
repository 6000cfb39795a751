"""When a forecast is put to the test: how old it must be, of steps of what size, after what."""

import pytest

from policies.admission import Forecast, Wish, worth_a_trial
from policies.step_time import StepWork
from policies.trials import BELIEF, Trials
from telemetry.units import SECOND

LATER = BELIEF * SECOND

PROMPT = StepWork(prefill_tokens=400, prefill_context=80_000)
TOKEN = StepWork(decode_sequences=1, context_tokens=400)


def taught(*works: StepWork) -> Trials:
    trials = Trials()
    for work in works:
        trials.observe(work, 0)
    return trials


def test_it_is_doubted_once_nothing_like_it_has_run_for_a_while_and_the_longer_the_more():
    trials = taught(PROMPT, TOKEN)
    assert trials.doubt([PROMPT, TOKEN], LATER - 1) == 0
    assert trials.doubt([PROMPT, TOKEN], LATER) == 10
    assert trials.doubt([PROMPT, TOKEN], 3 * LATER) == 30
    assert trials.doubt([PROMPT, TOKEN], 1000 * LATER) == 100
    assert Trials().doubt([PROMPT, TOKEN], 0) == 100


@pytest.mark.parametrize(
    ("work", "believed"),
    [
        (StepWork(prefill_tokens=300, prefill_context=70_000), True),
        (StepWork(2000, 8_000_000, 16, 10_000), True),
        (StepWork(prefill_tokens=20, prefill_context=200), False),  # teaches little of long prompts
        (StepWork(prefill_tokens=20, prefill_context=80_000), False),  # nor does the end of one
        (StepWork(prefill_tokens=400, prefill_context=10_000), False),  # nor many short ones
        (TOKEN, False),
    ],
)
def test_only_steps_of_about_that_size_or_more_make_a_forecast_believed(work, believed):
    assert (taught(work).doubt([PROMPT], LATER - 1) == 0) is believed


def test_it_rests_on_all_of_its_steps():
    assert taught(PROMPT).doubt([PROMPT, TOKEN], 0) > 0
    assert taught(PROMPT, TOKEN).doubt([PROMPT, TOKEN], 0) == 0


def test_a_trial_that_was_late_holds_the_next_one_off_and_a_kept_one_calls_for_it():
    trials = taught(PROMPT)
    trials.judge(LATER, kept=False)
    assert trials.doubt([PROMPT], 2 * LATER - 1) == 0
    trials.judge(LATER + 1, kept=None)  # cancelled, say
    assert trials.doubt([PROMPT], 2 * LATER - 1) == 0
    assert trials.doubt([PROMPT], 2 * LATER) == 20
    trials.judge(2 * LATER, kept=True)
    trials.observe(PROMPT, 2 * LATER)
    trials.judge(2 * LATER, kept=None)
    assert trials.doubt([PROMPT], 2 * LATER) == 10
    trials.judge(2 * LATER + 1, kept=False)
    assert trials.doubt([PROMPT], 3 * LATER) == 0


def test_each_trial_that_is_late_holds_the_next_one_off_for_twice_as_long_up_to_a_bound():
    trials, now, waits = taught(PROMPT), 0, []
    for _ in range(8):
        trials.judge(now, kept=False)
        waits.append(next(s for s in range(1000) if trials.doubt([PROMPT], now + s * SECOND)))
        now += waits[-1] * SECOND
    assert waits == [10, 20, 40, 80, 160, 320, 320, 320]
    trials.judge(now, kept=True)
    trials.judge(now, kept=False)
    assert trials.doubt([PROMPT], now + LATER) > 0


@pytest.mark.parametrize(
    ("first_token_in", "finish_in", "worth"),
    [
        (0.1, 3.0, True),
        (0.099, 3.0, False),
        (0.1, 2.9, False),
        (None, 3.0, True),
        (0.1, None, True),
        (0.001, None, False),
    ],
)
def test_what_would_be_late_even_if_the_forecast_is_that_wrong_is_not_worth_a_trial(
    first_token_in, finish_in, worth
):
    """It foretells ten times what is allowed, or more."""
    forecast = Forecast(start=0.5, first_token=1.0, finish=30.0, token=0.3)
    wish = Wish(100, first_token_in=first_token_in, finish_in=finish_in)
    assert worth_a_trial(wish, forecast, 10.0) is worth
    assert worth_a_trial(wish, forecast, 0.0) is False
