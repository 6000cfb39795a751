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


def test_a_tenant_with_many_races_makes_the_edge_forget_no_winner_of_another() -> None:
    commits = Commits(CAPACITY)
    commits.settle("gold", "t", winner("t"))
    for number in range(3 * CAPACITY):
        task = f"t{number}"
        commits.settle("bronze", task, winner(task, tenant="bronze"))
    assert commits.settle("gold", "t", winner("t", "a2")) == winner("t", "a1")
    known = [n for n in range(3 * CAPACITY) if commits.winner("bronze", f"t{n}") is not None]
    assert known == [9, 10, 11]
