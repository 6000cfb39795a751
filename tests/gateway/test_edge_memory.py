"""What the edge remembers of tasks is bounded, whoever tells of them."""

from gateway.commits import Commits
from telemetry.lineage import Scope

CAPACITY = 4


def winner(task: str, attempt: str = "a1", tenant: str = "gold") -> Scope:
    return Scope(tenant, task, attempt=attempt)


def test_winners_that_other_servers_tell_of_take_no_more_room_than_those_named_here() -> None:
    commits = Commits(CAPACITY)
    for number in range(3 * CAPACITY):
        commits.correct("gold", f"t{number}", winner(f"t{number}"))
    known = [n for n in range(3 * CAPACITY) if commits.winner("gold", f"t{n}") is not None]
    assert known == list(range(2 * CAPACITY, 3 * CAPACITY))
    commits.correct("gold", "t11", winner("t11", "a2"))
    assert commits.winner("gold", "t11") == winner("t11", "a2")
    assert commits.settle("gold", "t11", winner("t11", "a3")) == winner("t11", "a2")
