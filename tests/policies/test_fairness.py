"""The flow tree: who is next, what a charge does, and what idleness is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fairness.rules import Counters, DeficitPrefix, Head
from policies.fairness.tree import FlowTree


def pick(tree: FlowTree, passed=()):
    return Counters().pick(tree, passed, lambda _flow: Head(0, None, lambda: 0), 0)


def backlogged(tree: FlowTree, *paths):
    flows = []
    for path in paths:
        flow = tree.reach(tuple(path))
        tree.enter(flow)
        tree.enqueue(flow)
        flows.append(flow)
    return flows


def serve(tree: FlowTree, rounds: int, cost: float = 1.0) -> dict[tuple[str, ...], int]:
    served: dict[tuple[str, ...], int] = {}
    for _ in range(rounds):
        flow = pick(tree)
        tree.charge(flow, cost)
        served[flow.path] = served.get(flow.path, 0) + 1
    return served


def test_siblings_share_by_weight():
    tree = FlowTree(10)
    backlogged(tree, [("gold", 3.0)], [("bronze", 1.0)])
    assert serve(tree, 400) == {("gold",): 300, ("bronze",): 100}


def test_splitting_into_many_identities_buys_nothing():
    """Eight users of one tenant together get what a tenant with one user gets."""
    tree = FlowTree(20)
    users = [[("split", 1.0), (f"u{i}", 1.0)] for i in range(8)]
    backlogged(tree, *users, [("plain", 1.0), ("u", 1.0)])
    served = serve(tree, 1600)
    assert served[("plain", "u")] == 800
    assert {served[("split", f"u{i}")] for i in range(8)} == {100}


def test_an_idle_flow_saves_no_credit():
    tree = FlowTree(10)
    (busy,) = backlogged(tree, [("busy", 1.0)])
    serve(tree, 100)
    idle = tree.reach((("idle", 1.0),))
    tree.enter(idle)
    (lift,) = tree.enqueue(idle)
    assert (lift.path, lift.before, lift.after) == (("idle",), 0.0, 100.0)
    assert serve(tree, 100) == {("busy",): 50, ("idle",): 50}
    assert busy.counter == 150


def test_with_nobody_backlogged_a_flow_starts_where_the_last_one_left():
    tree = FlowTree(10)
    (first,) = backlogged(tree, [("first", 1.0)])
    serve(tree, 40)
    tree.dequeue(first)
    second = tree.reach((("second", 1.0),))
    tree.enter(second)
    tree.enqueue(second)
    assert second.counter == 40


def test_a_lift_never_lowers_a_counter():
    tree = FlowTree(10)
    a, b = backlogged(tree, [("a", 1.0)], [("b", 1.0)])
    tree.charge(a, 500)
    tree.dequeue(a)
    assert tree.enqueue(a) == []
    assert (a.counter, b.counter) == (500, 0)


def test_weights_change_at_once():
    tree = FlowTree(10)
    backlogged(tree, [("a", 1.0)], [("b", 1.0)])
    serve(tree, 100)
    tree.reach((("a", 4.0),))
    assert serve(tree, 100) == {("a",): 80, ("b",): 20}


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_must_be_positive_and_finite(weight):
    with pytest.raises(ValueError, match="must be positive"):
        FlowTree(10).reach((("a", weight),))


def test_idle_flows_make_room_and_flows_in_use_do_not():
    tree = FlowTree(3)
    backlogged(tree, [("a", 1.0)], [("b", 1.0)])
    assert tree.reach((("idle-1", 1.0),)) is not None
    assert tree.reach((("idle-2", 1.0),)) is not None
    assert len(tree) == 3
    assert tree.find(("idle-1",)) is None
    (third,) = backlogged(tree, [("idle-2", 1.0)])
    assert tree.reach((("d", 1.0),)) is None
    assert tree.by_index[third.index] is third


def test_flows_in_passed_are_left_out():
    tree = FlowTree(10)
    x, y = backlogged(tree, [("a", 1.0), ("x", 1.0)], [("b", 1.0), ("y", 1.0)])
    assert pick(tree, {x}) is y
    assert pick(tree, {x, y}) is None


def test_waiters_of_a_tenant_subdivided_later_are_still_served():
    tree = FlowTree(10)
    tenant, user = backlogged(tree, [("a", 1.0)], [("a", 1.0), ("user", 1.0)])
    assert pick(tree) is tenant
    assert pick(tree, {tenant}) is user


@given(
    st.lists(st.floats(0.1, 10), min_size=2, max_size=6),
    st.lists(st.floats(0.5, 20), min_size=50, max_size=200),
)
def test_backlogged_siblings_never_drift_apart_by_more_than_one_charge(weights, costs):
    """Lemma 4.3 of the VTC paper, for one server and charges of bounded size."""
    tree = FlowTree(10)
    flows = backlogged(tree, *[[(f"f{i}", w)] for i, w in enumerate(weights)])
    for cost in costs:
        tree.charge(pick(tree), cost)
        counters = [flow.counter for flow in flows]
        assert max(counters) - min(counters) <= max(costs) / min(weights) + 1e-9


@pytest.mark.parametrize(("debt", "first"), [(0.0, "calm"), (39.0, "calm"), (40.0, "urgent")])
def test_urgency_reorders_across_flows_within_a_bounded_debt(debt, first):
    """Product question: what urgent traffic may do to others. `urgent` is 40 units ahead."""
    tree = FlowTree(10)
    _, urgent = backlogged(tree, [("calm", 1.0)], [("urgent", 1.0)])
    tree.charge(urgent, 40.0)

    def head(flow) -> Head:
        return Head(0, 1000 if flow is urgent else None, lambda: 0)

    picked = Counters(debt).pick(tree, (), head, 0)
    assert picked.path == (first,)
    tree.charge(urgent, debt + 1.0)
    assert Counters(debt).pick(tree, (), head, 0).path == ("calm",)


def test_urgency_below_an_inner_node_counts_for_it():
    tree = FlowTree(10)
    backlogged(tree, [("a", 1.0), ("x", 1.0)], [("b", 1.0), ("y", 1.0)])
    deadlines = {("a", "x"): 2000, ("b", "y"): 1000}
    picked = Counters(5.0).pick(tree, (), lambda flow: Head(0, deadlines[flow.path], lambda: 0), 0)
    assert picked.path == ("b", "y")


def test_dlpm_refills_only_when_all_that_wait_have_spent_theirs():
    """`hot` has the longer prefix and spent its quantum; looking past `cold` gives it no other."""
    tree = FlowTree(10)
    hot, cold = backlogged(tree, [("hot", 1.0)], [("cold", 1.0)])
    prefixes = {hot: 500, cold: 0}

    def picked(*passed):
        head = lambda flow: Head(0, None, lambda: prefixes[flow])  # noqa: E731
        return DeficitPrefix(100.0).pick(tree, passed, head, 0)

    assert picked() is hot
    tree.charge(hot, 250.0)
    assert picked() is cold
    assert picked(cold) is hot  # rather than nobody, if `cold` cannot go
    assert (hot.deficit, cold.deficit) == (100.0, 100.0)
    tree.charge(cold, 120.0)
    assert picked() is cold  # one quantum more, and 80 are left of it; `hot` still owes 50
    assert (hot.deficit, cold.deficit) == (200.0, 200.0)
    tree.charge(cold, 80.0)
    assert picked() is hot
