"""Refused clients who come back: what is counted, and whether their hints were true."""

from engine.core.commands import Command, Submit
from engine.sim.jitter import JitteredProfile
from engine.sim.profile import A10G_LLAMA2_7B, UNIT_TIME, CostProfile
from loadgen.goodput import on_time
from loadgen.hints import CommandList, Hint, check, sample
from loadgen.record import Fate
from loadgen.replay import Rerun, Work
from loadgen.report import returns_table
from loadgen.returns import returns
from loadgen.scenario import Returns
from loadgen.simulation import Rules, Simulation
from loadgen.sweep import Cell, Run
from loadgen.workload import Request
from policies.config import PolicyConfig
from telemetry.events import Cause, Event, SequenceArrived
from telemetry.units import SECOND
from tests.sim.runs import FCFS, kernel, workload

SHORT = {"max_running": 1, "tenant_queued_requests": 1}


def request(origin: int, attempt: int = 0, at: float = 0.0) -> Request:
    return Request(int(at * SECOND), 0, 1, 1, origin=origin, attempt=attempt)


def refused(origin: int, attempt: int = 0, *, promised: bool = False) -> Fate:
    full = Cause.QUEUE_FULL
    return Fate(request(origin, attempt), cause=full, retry_after=5, promised=promised)


FATES = [
    Fate(request(0), arrived=0, first_token=2 * SECOND),
    refused(1, promised=True),
    refused(2, promised=True),
    refused(3),
    Fate(request(4), cause=Cause.TOO_LARGE),
    Fate(request(1, 1, at=5), arrived=5 * SECOND, first_token=6 * SECOND),
    refused(2, 1, promised=True),
    Fate(request(3, 1, at=5), arrived=5 * SECOND),
]


def test_returns_by_hand():
    """Two of the three promises saw their client again, and one of these let it in."""
    assert returns(FATES, [Hint(0, 3 * SECOND, 4 * SECOND)]) == {
        "fresh": 5,
        "fresh_admitted": 1,
        "fresh_ttft_seconds": [2.0],
        "refused": 5,
        "with_hint": 4,
        "promised": 3,
        "promised_returned": 2,
        "promised_admitted": 1,
        "others_returned": 1,
        "others_admitted": 1,
        "hint_errors": [0.25],
    }


def test_the_table_of_returns_is_over_all_seeds():
    def run(seed: int, hints: list[Hint]) -> Run:
        client = {"client": "a", "returns": {**returns(FATES, hints), "longest_queue": seed}}
        return Run(Cell("fair", 1.5, seed), {"clients": [client]}, 0.0)

    hints = [Hint(0, told, 100) for told in (90, 150, 130)]
    header, (row,) = returns_table([run(1, hints[:1]), run(7, hints[1:])])
    cells = dict(zip(header, row, strict=True))
    assert cells["fresh taken in"] == "20.0%"
    assert cells["refused"] == "10"
    assert cells["promised"] == "60.0%"
    assert cells["promised returns taken in"] == "50.0%"
    assert cells["other returns taken in"] == "100.0%"
    assert cells["longest queue"] == "7"
    assert (cells["hints checked"], cells["hint error"]) == ("3", "30.0%")


def test_a_return_has_as_much_time_as_the_first_try():
    first = Request(10, 0, 1, 1, first_token_deadline=15, deadline=40, origin=3)
    again = first.again(110)
    assert again == Request(110, 0, 1, 1, 115, 140, origin=3, attempt=1)
    assert on_time(Fate(again, first_token=115, ended=140, cause=Cause.STOP))


def test_the_sample_is_spread_over_first_refusals_that_say_when():
    fates = {n: refused(n) for n in range(10)}
    fates |= {10: refused(3, attempt=1), 11: Fate(request(11), cause=Cause.TOO_LARGE)}
    assert sample(fates, 2) == [2, 7]
    assert sample(fates, 10) == sample(fates, 99) == list(range(10))


def recorded(rows, profile: CostProfile, **changes) -> tuple[Simulation, Work, list[Event]]:
    """A finished run whose refused clients return once, what was recorded, and its events."""
    commands, events = CommandList(), []
    simulation = Simulation(
        workload(rows),
        kernel(PolicyConfig(fairness=FCFS), **(SHORT | changes)),
        profile,
        Rules(returns=Returns(most=1, jitter=0.0)),
        watch=events.extend,
        journal=commands,
    )
    simulation.run()
    return simulation, Work(tuple(commands.given), simulation.lengths, {}), events


def test_what_is_replayed_is_the_run_that_was_recorded():
    rows = [(0.2 * i, "ab"[i % 2], 50 + i, 30) for i in range(60)]
    noisy = JitteredProfile(A10G_LLAMA2_7B, 0.1, 7)
    simulation, work, events = recorded(rows, noisy, max_running=2, tenant_queued_requests=3)
    same_noise = JitteredProfile(A10G_LLAMA2_7B, 0.1, 7)
    assert Rerun(work, simulation.scheduler.config, same_noise).run() == events
    assert any(fate.request.attempt for fate in simulation.recorder.fates.values())


def test_the_earliest_time_by_hand():
    """The first request runs from 0 to 3 and the second waits; the third is refused at 1. Its place

    is free once the second has entered the batch at 3, for whoever comes at the next boundary.
    """
    rows = [(0.0, "a", 1, 3), (0.5, "a", 1, 5), (0.75, "a", 1, 1)]
    simulation, work, _ = recorded(rows, UNIT_TIME)
    fates = simulation.recorder.fates
    (number,) = sample(fates, 5)
    (hint,) = check(Rerun(work, simulation.scheduler.config, UNIT_TIME), fates, [number])
    assert fates[number].ended == 1 * SECOND
    assert hint == Hint(0, fates[number].retry_after, 3 * SECOND)


def test_who_came_later_stands_behind():
    """Of two refused at once the second's return, as recorded, is not before the first."""
    rows = [(0.0, "a", 1, 3), (0.5, "a", 1, 5), (0.75, "a", 1, 1), (0.8, "a", 1, 1)]
    simulation, work, _ = recorded(rows, UNIT_TIME)
    fates = simulation.recorder.fates
    hints = check(Rerun(work, simulation.scheduler.config, UNIT_TIME), fates, sample(fates, 5))
    assert [hint.earliest for hint in hints] == [3 * SECOND] * 2


def test_a_copy_goes_on_without_some_commands_and_leaves_the_original_alone():
    rows = [(0.1 * i, "a", 1, 3) for i in range(6)]
    simulation, work, events = recorded(rows, UNIT_TIME, tenant_queued_requests=9)

    def fourth(command: Command) -> bool:
        return isinstance(command, Submit) and command.sequences == (4,)

    rerun = Rerun(work, simulation.scheduler.config, UNIT_TIME)
    assert rerun.advance_until(fourth).command.sequences == (4,)
    began = rerun.now
    fork = rerun.fork(without=fourth)
    arrived = [event.sequence for event in fork.run() if isinstance(event, SequenceArrived)]
    assert arrived == [2, 3, 5, 6]
    rest = rerun.run()
    assert rest == events[-len(rest) :]
    assert rest[0].now == began
