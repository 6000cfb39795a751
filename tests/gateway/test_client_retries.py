"""When the client sends again, and what it tells of its scope: decided without a server."""

import math
import random

import pytest

from gateway.client import Client, DeadlineError, GivenUp, RetryPolicy, Scope, scope
from gateway.client.retries import DEFAULT_POLICY, Failure, Retries, RetryBudget, read_failure
from gateway.client.sse import DONE, EventReader

CHANCE = random.Random(1)
LATER = Failure(again=True, hint=2.0)


def retries(policy: RetryPolicy = DEFAULT_POLICY, end: float = math.inf) -> Retries:
    return Retries(policy, RetryBudget(policy), end)


@pytest.mark.parametrize(
    ("status", "headers", "failure"),
    [
        (429, {"retry-after": "2", "retry-after-ms": "1250"}, Failure(True, 1.25)),
        (429, {"retry-after": "2"}, Failure(True, 2.0)),
        (503, {"retry-after": "0.5"}, Failure(True, 0.5)),
        (503, {"retry-after": "0", "retry-after-ms": "-3"}, Failure(True)),
        (503, {"retry-after": "nan"}, Failure(True)),
        (503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, Failure(True)),
        (500, {}, Failure(True)),
        (409, {"retry-after": "1"}, Failure(True, 1.0)),
        (409, {}, Failure(False)),
        (429, {"retry-after": "9", "x-should-retry": "false"}, Failure(False, 9.0)),
        (504, {"x-should-retry": "false"}, Failure(False)),
        (400, {"x-should-retry": "true"}, Failure(True)),
        (400, {}, Failure(False)),
        (401, {}, Failure(False)),
        (422, {}, Failure(False)),
        (499, {}, Failure(False)),
    ],
)
def test_what_an_answer_says_of_trying_again(status, headers, failure):
    assert read_failure(status, headers) == failure


def test_a_hint_is_kept_to_the_letter():
    assert retries().after(LATER, 100.0, CHANCE) == 2.0


def test_without_a_hint_the_wait_is_drawn_from_a_range_that_doubles_up_to_a_cap():
    policy = RetryPolicy(sends=8, base=0.5, cap=4.0)
    longest = [0.0] * 7
    for _ in range(500):
        call = retries(policy)
        for number in range(7):
            wait = call.after(Failure(again=True), 0.0, CHANCE)
            assert isinstance(wait, float)
            longest[number] = max(longest[number], wait)
    for seen, most in zip(longest, [0.5, 1, 2, 4, 4, 4, 4], strict=True):
        assert 0.9 * most < seen <= most


def test_nothing_is_sent_again_at_or_past_the_end():
    assert retries(end=102.0).after(LATER, 100.0, CHANCE) is GivenUp.DEADLINE
    assert retries(end=102.001).after(LATER, 100.0, CHANCE) == 2.0


def test_a_call_is_sent_so_many_times():
    call = retries(RetryPolicy(sends=3))
    assert [call.after(LATER, 0.0, CHANCE) for _ in range(3)] == [2.0, 2.0, GivenUp.SENDS]
    assert call.count == 2


def test_what_is_final_or_too_far_away_is_not_sent_again():
    assert retries().after(Failure(False, 1.0), 0.0, CHANCE) is GivenUp.FINAL
    assert retries().after(Failure(True, 60.5), 0.0, CHANCE) is GivenUp.HINT


def test_all_calls_of_a_client_share_one_budget():
    policy = RetryPolicy(ratio=0.1, burst=2)
    budget = RetryBudget(policy)
    said = [Retries(policy, budget, math.inf).after(LATER, 0.0, CHANCE) for _ in range(1000)]
    assert said[:3] == [2.0, 2.0, GivenUp.BUDGET]
    assert sum(wait == 2.0 for wait in said) == 2 + 100 - 1  # a full bucket took no first deposits


def test_what_is_saved_up_is_bounded_and_refusals_cost_nothing():
    policy = RetryPolicy(burst=3, sends=100)
    budget = RetryBudget(policy)
    for _ in range(1000):
        last = Retries(policy, budget, 50.0)
    assert last.after(LATER, 49.0, CHANCE) is GivenUp.DEADLINE
    assert [last.after(LATER, 0.0, CHANCE) for _ in range(4)] == [2.0] * 3 + [GivenUp.BUDGET]


@pytest.mark.parametrize("wrong", [{"sends": 0}, {"base": -1}, {"cap": math.nan}, {"ratio": -0.1}])
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


# -- scopes -----------------------------------------------------------------------------------


def test_scopes_inherit_and_only_ever_get_narrower():
    with scope(task="t", run="r", within=60) as outer:
        with scope(attempt="a", within=5) as inner:
            assert (inner.task, inner.run, inner.attempt) == ("t", "r", "a")
            assert inner.task_end == outer.end
            assert inner.end < outer.end
            with scope(within=600) as longer:
                assert longer == inner
            with scope(run="r2") as other:
                assert (other.run, other.attempt) == ("r2", None)
            with scope(task="u") as another:
                assert (another.task, another.run, another.attempt) == ("u", None, None)
                assert another.end == another.task_end == inner.end
        with scope() as again:
            assert again == outer
    with scope() as fresh:
        assert fresh.task not in {"t", "u"}
        assert fresh.end == math.inf


def test_a_tasks_end_is_told_as_time_left_and_an_earlier_one_as_an_instant():
    told = Scope("t", "r", "a", task_end=130.0, end=110.0).headers(100.0, 1_700_000_000.0)
    assert told == {
        "x-task-id": "t",
        "x-run-id": "r",
        "x-attempt-id": "a",
        "x-timeout-ms": "30000",
        "x-deadline": "1700000010000",
    }
    assert Scope("t", task_end=130.0, end=130.0).headers(100.0, 0.0) == {
        "x-task-id": "t",
        "x-timeout-ms": "30000",
    }
    assert Scope("t").headers(100.0, 0.0) == {"x-task-id": "t"}


def test_nothing_is_sent_for_a_scope_that_is_over():
    with pytest.raises(DeadlineError):
        Scope("t", task_end=130.0, end=110.0).headers(110.0, 0.0)


# -- events -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_found_however_the_bytes_are_cut(size):
    sent = ': keep-alive\n\ndata: {"a":"東\u2028x"}\n\n'
    sent += "id: 7\r\ndata: 1\r\ndata:2\r\n\r\ndata: [DONE]\n\n"
    data, reader, seen = sent.encode(), EventReader(), []
    for start in range(0, len(data), size):
        seen += reader.feed(data[start : start + size])
    assert seen == ['{"a":"東\u2028x"}', "1\n2", DONE]


# -- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["localhost:8000", "", "http://", "ftp://host"])
def test_a_url_that_is_none_is_refused_at_once(url):
    with pytest.raises(ValueError, match="http://host:port"):
        Client(url, "key")


@pytest.mark.parametrize("key", ["", "wm-secret\n", "wm-secret two", "wm-sécret"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_told(key):
    with pytest.raises(ValueError, match="the key must be") as caught:
        Client("http://127.0.0.1:1", key)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"task": "tâche"}, {"run": "a\nb"}, {"attempt": " a"}])
def test_an_id_that_cannot_be_sent_is_refused_by_name(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name), scope(**wrong):
        pass


def test_an_end_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="within"), scope(within=math.nan):
        pass


def test_an_attempt_of_no_run_is_not_taken_for_the_whole_task():
    with (
        Client("http://127.0.0.1:1", "key") as mine,
        pytest.raises(ValueError, match="run, which is not named"),
    ):
        mine.cancel("task", attempt="a")


@pytest.mark.parametrize("ids", [("..",), ("task", ".."), ("task", "run", ".."), ("task", "")])
def test_what_would_cancel_something_broader_is_no_id(ids):
    with Client("http://127.0.0.1:1", "key") as mine, pytest.raises(ValueError, match="no id"):
        mine.cancel(*ids)
