"""The fairness figures on cases worked out by hand."""

import numpy as np
import pytest

from engine.sim.profile import UNIT_TIME
from loadgen.fairness_metrics import overlaps, service_gap, window_table
from loadgen.record import Fate, ServiceLog
from loadgen.scenario import Windows
from loadgen.workload import Request
from policies.config import PolicyConfig
from telemetry.events import Cause
from telemetry.units import SECOND
from tests.sim.runs import FCFS, kernel, simulate


def fate(client: int, arrival: float, first: float, end: float, prompt: int, output: int) -> Fate:
    def at(seconds: float) -> int:
        return int(seconds * SECOND)

    request = Request(at(arrival), client, prompt, output)
    return Fate(
        request,
        first_token=at(first),
        ended=at(end),
        cause=Cause.LENGTH,
        output_tokens=output,
    )


TEN = Windows(seconds=10, ticks=1, warm_up=0, horizon=10)  # one window, [0, 10]


def test_unmet_demand_counts_up_to_the_most_served():
    fates = [
        fate(0, 0, 2, 6, 10, 20),  # 50 units, all within: 5/s served of 5/s asked for
        fate(1, 0, 5, 15, 10, 10),  # 30 units, half of them within: 1.5/s of 3/s
    ]
    assert window_table(fates, 2, TEN).ticks == pytest.approx((1.5,))
    assert window_table(fates, 2, TEN).peak_gap == pytest.approx(37.5)  # until 5 s: 37.5 and 0


def test_a_client_far_behind_its_demand_counts_by_the_most_served():
    fates = [
        fate(0, 0, 2, 6, 10, 20),  # 5/s
        fate(1, 0, 5, 15, 10, 10),  # 1.5/s
        fate(1, 3, 20, 30, 100, 100),  # asks for 30/s more and is served nothing: |33 - 1.5| > 3.5
    ]
    assert window_table(fates, 2, TEN).ticks == pytest.approx((3.5,))


def test_service_beyond_demand_counts_too():
    fates = [fate(0, 0, 1, 9, 100, 0), fate(1, -20, 2, 8, 10, 10)]
    # Client 1 asked before the window began and is served 3/s in it; 10/s is the most.
    assert window_table(fates, 2, TEN).ticks == pytest.approx((3.0,))


def test_the_ticks_are_where_the_artifact_has_them():
    """The first of 19 windows is [28.5, 88.5] s; both clients ask in it for one unit a second."""
    peer = fate(1, 35, 40, 41, 0, 30)
    inside = window_table([fate(0, 35, 88.5, 88.5, 0, 30), peer], 2, Windows())
    outside = window_table([fate(0, 35, 88.6, 88.6, 0, 30), peer], 2, Windows())
    assert (inside.ticks[0], outside.ticks[0]) == pytest.approx((0.0, 1.0))
    assert len(inside.ticks) == 19


def log(service: list[list[float]], *backlogs: list[tuple[int, int]], paths=None) -> ServiceLog:
    columns = np.asarray(service, float).T
    names = paths or [(name,) for name in "abc"[: len(service)]]
    return ServiceLog(
        tuple(names), np.arange(len(columns) - 1), columns, tuple(map(tuple, backlogs))
    )


def test_the_service_gap_is_the_widest_range_within_one_common_interval():
    first = [0, 1, 5, 2, 9, 9, 4, 4, 4]
    flat = [0] * 9
    # Common: steps 1 to 3 (values 1, 5, 2) and 5 to 6 (values 9, 4). The jump from 2 to 9 is not.
    gap = service_gap(log([first, flat], [(0, 3), (5, 8)], [(1, 6)]))
    assert gap.value == 5.0
    assert gap.pair == (("a",), ("b",))


def test_touching_intervals_are_two_intervals():
    rise = [0, 3, 6, 9]
    gap = service_gap(log([rise, [0] * 4], [(0, 2), (2, 3)], [(0, 3)]))
    assert gap.value == 6.0


def test_only_siblings_are_compared():
    paths = [("x",), ("x", "one"), ("y",), ("y", "two")]
    service = [[0, 1], [0, 100], [0, 2], [0, 0]]
    always = [(0, 1)]
    gap = service_gap(log(service, always, always, always, always, paths=paths))
    assert gap.value == 1.0
    assert gap.pair == (("x",), ("y",))


def test_flows_never_backlogged_together_have_no_gap():
    gap = service_gap(log([[0, 5, 9], [0, 0, 0]], [(0, 1)], [(1, 2)]))
    assert (gap.value, gap.pair) == (0.0, None)


def test_common_intervals():
    assert overlaps([(0, 4), (6, 9)], [(2, 7), (8, 20)]) == [(2, 4), (6, 7), (8, 9)]
    assert overlaps([(0, 2)], [(2, 4)]) == []
    assert overlaps([], [(0, 1)]) == []


def test_a_run_of_one_slot_in_arrival_order_by_hand():
    """Two requests of a, then one of b; prompts of 1 and outputs of 2 tokens, one slot.

    a waits until its second request starts, after 2 steps; b until after 4. Until then W of a goes
    0, 3 (prompt and one token), 5 (one more token), while b has nothing.
    """
    rows = [(0.0, "a", 1, 2), (0.0, "a", 1, 2), (0.0, "b", 1, 2)]
    config = kernel(PolicyConfig(fairness=FCFS), max_running=1)
    simulation = simulate(rows, config, profile=UNIT_TIME)
    found = simulation.recorder.log()
    assert found.paths == (("a",), ("b",))
    assert found.service[:, 0].tolist() == [0, 3, 5, 8, 10, 10, 10]
    assert found.service[:, 1].tolist() == [0, 0, 0, 0, 0, 3, 5]
    assert found.backlogs == (((0, 2),), ((0, 4),))
    assert service_gap(found).value == 5.0
    assert found.served(0, 4 * SECOND).tolist() == [10, 0]


def test_weights_divide_service():
    rows = [(0.0, "a", 1, 2), (0.0, "a", 1, 2), (0.0, "b", 1, 2)]
    config = kernel(PolicyConfig(fairness=FCFS), max_running=1)
    simulation = simulate(rows, config, profile=UNIT_TIME, a=2.0)
    assert service_gap(simulation.recorder.log()).value == 2.5
