"""Lag inside a tenant whose turn it is not: what bounds it, and that `max_lag` does not.

Room is made for the flow next in line, with regard to its siblings and to those of what it belongs
to. Inside a tenant that is not next nobody gives way, and children f and g of it part as they do
under `vtc`: a sequence of f enters only while f is no more than max_lag / 2 ahead of g, and g
starts no further behind when it comes; after that f is charged no more than what its resident
sequences have left to compute, whose KV fits the memory of M tokens together. So, with
`kv_bypass_limit` 0 and nothing computed twice,

    c_f - c_g <= max_lag / 2 + max(wp, wq)·M / weight of f

while g is backlogged and f backlogged or running.
"""

from collections import defaultdict

from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig
from tests.kernel.world import World, config

PROMPT, OUTPUT, BLOCK = 1.0, 2.0, 16
ROUNDING = 1e-6


class Watch:
    """The most by which each flow led a backlogged sibling."""

    def __init__(self, max_lag: float, **kernel) -> None:
        fairness = FairnessConfig("fair", max_lag=max_lag)
        policy = PolicyConfig(fairness=fairness, preemption="swap")
        self.world = World(config(policy=policy, kv_bypass_limit=0, **kernel))
        self.tree = self.world.scheduler._state.tree
        self.led: dict[str, float] = defaultdict(float)

    def step(self) -> None:
        self.world.step()
        for flow in list(self.tree):
            if flow.queued or flow.running:
                siblings = [s for s in flow.above.children.values() if s.queued and s is not flow]
                lead = max((flow.counter - s.counter for s in siblings), default=0.0)
                name = "/".join(flow.path)
                self.led[name] = max(self.led[name], lead)


# Someone far ahead of a flow that has no room took it from others who were further ahead still.
TAKEN = [
    *[("b/y", 14, 5, 1), ("c", 24, 6, 1), ("a/x", 74, 2, 0), ("a/x", 80, 1, 0), ("a/y", 10, 1, 0)],
    *[("b/x", 78, 1, 0), ("b/y", 1, 1, 0), ("c", 101, 2, 0), ("b/x", 1, 1, 0), ("c", 55, 1, 0)],
]

# The only work on the device was paused, and kept out the one whose turn it was.
LONE_PAUSED = [
    *[("a/x", 36, 56, 0), ("a/x", 80, 88, 20), ("a/x", 96, 119, 0), ("c", 98, 110, 4)],
    *[("a/y", 1, 43, 0), ("a/y", 88, 43, 4), ("a/y", 1, 1, 20), ("b/x", 14, 113, 0)],
    *[("b/x", 15, 98, 0), ("c", 23, 1, 0), ("c", 23, 54, 0)],
]


@settings(max_examples=15, deadline=None)
@example(TAKEN, 20, 4, 40.0)
@example(LONE_PAUSED, 20, 2, 40.0)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a/x", "a/y", "a/z", "b/x", "b/y", "c"]),
            st.integers(1, 120),  # prompt tokens
            st.integers(1, 120),  # output tokens
            st.sampled_from([0, 0, 0, 1, 4, 20]),  # steps until the next one comes
        ),
        min_size=6,
        max_size=40,
    ),
    st.sampled_from([20, 40]),  # blocks
    st.sampled_from([2, 4, 8]),  # slots
    st.sampled_from([40.0, 200.0]),
)
def test_lag_is_bounded_between_tenants_by_a_step_and_inside_by_what_the_memory_holds(
    requests, blocks, slots, max_lag
):
    watch = Watch(max_lag, num_blocks=blocks, host_blocks=2000, max_running=slots)
    for path, prompt, output, steps in requests:
        watch.world.submit(path, prompt, output)
        for _ in range(steps):
            watch.step()
    for _ in range(5000):
        watch.step()
        if not watch.world.scheduler.running + watch.world.scheduler.waiting:
            break
    watch.world.check_idle()
    inner = max_lag / 2 + max(PROMPT, OUTPUT) * blocks * BLOCK
    outer = max_lag / 2 + PROMPT * watch.world.config.max_step_tokens + OUTPUT * slots
    for path, led in watch.led.items():
        assert led <= (inner if "/" in path else outer) + ROUNDING, path


def crowd(blocks: int, slots: int, output: int, steps: int) -> Watch:
    """`b` and `a/y` want to say much, `a/x` one token at a time; all of them without end."""
    watch = Watch(40.0, num_blocks=blocks, host_blocks=2000, max_running=slots)
    watch.world.scheduler.verify = lambda: None  # the laws have tests of their own
    for _ in range(30):
        for path, tokens in (("b", output), ("a/y", output), *[("a/x", 1)] * 7):
            watch.world.submit(path, 1, tokens)
    for _ in range(steps):
        watch.step()
    for path in (("a", "x"), ("a", "y"), ("b",)):
        assert watch.tree.find(path).queued
    return watch


def test_inner_lag_is_what_residents_have_left_and_not_max_lag():
    """Between tenants it would be at most max_lag / 2 and the charge of a step: 20 and 64 + 4."""
    assert crowd(200, 2, 100, 200).led["a/y"] > 150.0
    assert crowd(200, 2, 400, 500).led["a/y"] > 600.0


def test_what_a_tenant_is_owed_goes_to_its_least_served_child():
    """Whatever is given to the tenant to catch up with `b`; else the gap would grow without end."""
    watch = crowd(20, 2, 120, 500)
    assert watch.led["a/y"] <= 20.0 + OUTPUT * 20 * BLOCK
    y, x = (watch.tree.find(("a", name)).counter for name in "yx")
    assert y - x <= 20.0 + OUTPUT * 121
