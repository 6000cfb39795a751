"""Deadlines on the wire: right instants, and a clear answer for everything else."""

import pytest

from gateway.deadlines import Deadlines, TaskDeadlines, TimeLimits, read_deadlines, resolve
from gateway.errors import ApiError
from telemetry.clock import VirtualClock
from telemetry.events import Cause

MS = 1_000_000
# Monotonic and wall time differ, so that a mix-up shows. The epoch is 2026-01-01T00:00:00Z.
WALL_MS = 1_767_225_600_000
NOW = 5_000 * MS


def clock() -> VirtualClock:
    return VirtualClock(start=NOW, epoch=WALL_MS * MS)


def read(**headers: str) -> Deadlines:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return resolve(*read_deadlines(named, clock()), NOW)


@pytest.mark.parametrize(
    ("text", "ahead_ns"),
    [
        (str(WALL_MS + 1500), 1500 * MS),
        ("2026-01-01T00:00:02Z", 2000 * MS),
        ("2026-01-01t00:00:02.000000001z", 2000 * MS + 1),
        ("2026-01-01T05:30:00.5+05:30", 500 * MS),
        ("2025-12-31 23:00:01-01:00", 1000 * MS),
    ],
)
def test_instants_become_monotonic(text, ahead_ns):
    assert read(x_deadline=text) == Deadlines(NOW + ahead_ns, None)
    assert read(x_first_token_deadline=text) == Deadlines(None, NOW + ahead_ns)


def test_timeouts_count_from_now():
    assert read(x_timeout_ms="250") == Deadlines(NOW + 250 * MS, None)
    assert read(x_first_token_timeout_ms="1") == Deadlines(None, NOW + MS)


def test_the_earlier_of_instant_and_timeout_counts():
    assert read(x_deadline=str(WALL_MS + 900), x_timeout_ms="300").end == NOW + 300 * MS
    assert read(x_deadline=str(WALL_MS + 100), x_timeout_ms="300").end == NOW + 100 * MS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "-0",
        "nan",
        "NaN",
        "inf",
        "1e12",
        "soon",
        "1767225600",
        "²",
        "12345678901234567890",
        "9" * 400,
        "292277-01-01T00:00:00Z",
        "+292277026596-12-04T15:30:08Z",
        "9999-12-31T23:59:59Z",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-01-01T25:00:00Z",
        "2026-01-01T00:00:00+99:00",
        "2026-W01-1T00:00:00Z",
        " 2026",
        "٢٠٢٦",
    ],
)
@pytest.mark.parametrize("name", ["x-deadline", "x-first-token-deadline"])
def test_what_is_no_instant_is_refused_by_name(name, text):
    with pytest.raises(ApiError) as caught:
        read_deadlines({name: text}, clock())
    assert caught.value.row.status == 400
    assert caught.value.param == name
    assert caught.value.message.startswith(name)


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "nan", "inf", "1.5", "1e3", "abc", "9" * 30, "2678400001", "²"]
)
@pytest.mark.parametrize("name", ["x-timeout-ms", "x-first-token-timeout-ms"])
def test_what_is_no_timeout_is_refused_by_name(name, text):
    with pytest.raises(ApiError) as caught:
        read_deadlines({name: text}, clock())
    assert caught.value.row.status == 400
    assert caught.value.param == name


@pytest.mark.parametrize(
    "text", [str(WALL_MS), str(WALL_MS - 1), "1999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59"]
)
@pytest.mark.parametrize(
    ("name", "cause"),
    [("x-deadline", Cause.DEADLINE), ("x-first-token-deadline", Cause.FIRST_TOKEN_DEADLINE)],
)
def test_an_instant_that_passed_is_504(name, cause, text):
    with pytest.raises(ApiError) as caught:
        read_deadlines({name: text}, clock())
    assert caught.value.row.status == 504
    assert caught.value.row.code == "deadline_exceeded"
    assert caught.value.reason is cause


def test_a_tenants_default_and_ceiling():
    limits = TimeLimits(default_ms=1000, max_ms=3000)
    none = Deadlines()
    assert resolve(none, none, NOW) == none
    assert resolve(none, none, NOW, limits).end == NOW + 1000 * MS
    assert resolve(none, Deadlines(NOW + 2000 * MS), NOW, limits).end == NOW + 2000 * MS
    assert resolve(none, Deadlines(NOW + 9000 * MS), NOW, limits).end == NOW + 3000 * MS
    assert resolve(none, none, NOW, TimeLimits(max_ms=3000)).end == NOW + 3000 * MS


def test_a_deadline_fixed_earlier_and_passed_is_504():
    with pytest.raises(ApiError) as caught:
        resolve(Deadlines(), Deadlines(NOW - 1), NOW)
    assert caught.value.reason is Cause.DEADLINE


def test_the_first_timeout_of_a_task_is_never_extended():
    tasks = TaskDeadlines()
    assert tasks.fix("gold", "t", 100) == 100
    assert tasks.fix("gold", "t", 900) == 100
    assert tasks.fix("gold", "t", 50) == 50
    assert tasks.fix("gold", "t", 900) == 100
    assert tasks.fix("bronze", "t", 900) == 900
    assert tasks.fix("gold", "t2", 900) == 900


def test_task_deadlines_are_bounded():
    tasks = TaskDeadlines(capacity=3)
    for number in range(10):
        tasks.fix("gold", f"t{number}", number + 1)
    assert tasks.fix("gold", "t9", 99) == 10
    assert tasks.fix("gold", "t0", 99) == 99


def test_a_tenant_with_many_tasks_makes_the_edge_forget_no_deadline_of_another():
    tasks = TaskDeadlines(capacity=4)
    tasks.fix("gold", "t", 100)
    for number in range(10):
        tasks.fix("bronze", f"t{number}", number + 1)
    assert tasks.fix("gold", "t", 999) == 100
    assert [tasks.fix("bronze", f"t{number}", 999) for number in (7, 8, 9)] == [8, 9, 10]
    assert tasks.fix("bronze", "t6", 999) == 999
