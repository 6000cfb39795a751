"""The comparison with other servers, on one that needs no model."""

import pytest

from loadgen import flood
from loadgen.flood import Flood, Visits, ratios
from loadgen.peer_client import PeerError
from loadgen.peers import Load, Run, findings, measure, rows

SIMULATED = '[model]\ndevice = "simulated"\n'
LOAD = Load("32 at once", 4, 2, (8, 16), (1, 5), rate=True)


@pytest.mark.server
def test_a_server_is_measured_and_what_is_none_is_told():
    runs = measure({}, [LOAD], 2, SIMULATED, lambda _line: None)
    assert [(run.load, run.peer) for run in runs] == [("32 at once", "watermaster")] * 2
    assert all(run.rate > 0 and 0 < run.first < 5 for run in runs)
    with pytest.raises(PeerError, match="models cannot be reached"):
        measure({"vllm": "http://127.0.0.1:1/v1"}, [LOAD], 1, SIMULATED, lambda _line: None)


def test_prompts_are_new_and_lengths_are_not():
    first, again, other = LOAD.calls(1), LOAD.calls(1), LOAD.calls(2)
    lengths = [[(len(call.prompt), call.output) for call in one] for one in (first, again, other)]
    assert lengths[0] == lengths[1] != lengths[2]
    assert {call.prompt for call in first}.isdisjoint(call.prompt for call in again)


def test_ratios_are_taken_run_by_run():
    prompts = Load("prompts of 512", 1, 1, (512, 512), (1, 1), rate=False)
    runs = [
        *(Run("32 at once", "watermaster", rate, 1.0) for rate in (200.0, 150.0, 90.0)),
        *(Run("32 at once", "vllm", 100.0, 1.0) for _ in range(3)),
        *(Run("32 at once", "someone", 1.0, 1.0) for _ in range(3)),
        Run("prompts of 512", "watermaster", 1.0, 0.4),
        Run("prompts of 512", "vllm", 1.0, 0.5),
    ]
    rate, first = findings(runs, [LOAD, prompts])
    assert (rate.value, rate.limit, rate.bound, rate.note) == (1.5, 1.35, "least", "0.9 to 2")
    assert (first.value, first.bound, first.kept) == (0.8, "most", True)
    assert rows(runs)[1] == ("32 at once", "vllm", "100 (100 to 100)", "1,000 ms")


@pytest.mark.server
def test_a_visitor_calls_alone_and_beside_a_flood_of_another_tenant():
    (visits,) = flood.measure({}, Flood(4, 0.2, 0.5), 1, SIMULATED, lambda _line: None)
    assert len(visits.alone) == flood.ALONE
    assert len(visits.beside) == len(visits.whole) >= 1
    assert all(0 < a <= b for a, b in zip(visits.beside, visits.whole, strict=True))
    assert visits.flood_rates[0] > 0
    assert flood.rows([visits])[0][0] == "watermaster"


def test_waits_beside_a_flood_are_told_over_those_alone_and_over_ours():
    ours = Visits("watermaster", alone=[0.5], beside=[1.0, 2.0, 3.0])
    other = Visits("vllm", alone=[1.0, 1.0], beside=[20.0])
    assert ratios([ours, other]) == [
        "watermaster: 4.0 x alone, 1.0 x watermaster's beside the flood",
        "vllm: 20.0 x alone, 10.0 x watermaster's beside the flood",
    ]
