"""The bench of refusals: on a live server, and its arithmetic."""

import pytest

from loadgen import refusals
from loadgen.refusals import Way, findings, rows


@pytest.mark.server
@pytest.mark.model
def test_who_comes_back_when_told_finds_the_place_that_is_held(monkeypatch):
    """With room for so few that a slow machine has to refuse some, too."""
    small = "max_running = 4\nmax_queued_requests = 6\ntenant_queued_requests = 4\n"
    monkeypatch.setattr(refusals, "CONFIG", f"[kernel]\n{small}")
    monkeypatch.setattr(refusals, "CROWD", 6)
    (told,) = refusals.measure(
        load=4.0, seconds=8.0, probe=12, report=lambda _line: None, ways=["when told"]
    )
    assert 0 < told.refused < told.calls
    assert told.told == told.returned == told.refused == len(told.waits)
    assert told.places["claimed"] > 0
    assert "lapsed" not in told.places
    assert told.taken_in <= told.returned
    assert told.calls == told.answered < told.sent <= refusals.MOST_TRIES * told.calls
    assert all(wait > 0 for wait in told.waits)


def test_shares_are_of_those_whom_they_concern():
    way = Way(
        *("when told", True),
        calls=20,
        refused=10,
        told=9,
        returned=8,
        taken_in=6,
        sent=40,
        answered=16,
        waits=[1.0, 2.0, 30.0],
        places={"booked": 8, "claimed": 3, "lapsed": 1},
    )
    row = ("when told", "20", "50%", "90%", "75%", "2.50", "80%", "2.0 s")
    assert rows([way]) == [row]
    (used,) = findings([way])
    assert (used.value, used.kept, used.note) == (75.0, False, "3 of 4")


def test_without_a_time_callers_double_their_pause_up_to_a_limit():
    assert refusals.pause(5, "1500") == 1.5
    for tries, longest in ((0, 0.5), (2, 2.0), (4, 8.0), (7, 8.0)):
        assert 0.75 * longest <= refusals.pause(tries, None) <= longest
