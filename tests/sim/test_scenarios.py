"""Scenario files: what they mean, and what is wrong with them."""

from collections import defaultdict

import numpy as np
import pytest

from engine.sim.profile import A10G_LLAMA2_7B, UNIT_TIME, HostLink
from loadgen.arrivals import Phase, arrival_times
from loadgen.data import DEFAULT_DATA, DataFolder
from loadgen.kernel_config import kernel_config
from loadgen.lengths import Distribution, draw_lengths
from loadgen.overrides import length_knowledge, senders_only
from loadgen.prefixes import prompt_hashes
from loadgen.scenario import Scenario, load_scenario, shipped
from loadgen.tables import ScenarioError, build
from loadgen.traces import read_trace
from loadgen.workload import make_workload, time_alone
from policies.config import PolicyConfig
from telemetry.units import SECOND
from tests.sim.runs import NO_DATA

needs_data = pytest.mark.skipif(not DEFAULT_DATA.is_dir(), reason=NO_DATA)

CLIENT = {"name": "a", "phases": [{"rate": 1.0}], "prompt": 8, "output": 4}
TABLE = {
    "title": "test",
    "duration": 10.0,
    "kernel": {"kv_tokens": 1000, "block_size": 10, "max_running": 4, "max_step_tokens": 64},
    "clients": [CLIENT],
    "policies": {"fair": {}},
}


def scenario(**changes) -> Scenario:
    return build(Scenario, TABLE | changes, "")


def test_every_shipped_scenario_can_be_read_and_its_policies_configured():
    names = [name for name, _ in shipped()]
    assert {"vtc-overload", "vtc-real"} <= set(names)
    for name in names:
        loaded = load_scenario(name)
        for policy in loaded.policies:
            assert kernel_config(loaded, policy, HostLink()).num_blocks > 0
            assert length_knowledge(loaded, policy) in {"declared", "unknown"}
        loaded.device.noise_free()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"titel": "x"}, "titel is not a key; known here: title, duration"),
        ({"clients": [CLIENT | {"phase": 1}]}, r"clients\[0\].phase is not a key"),
        ({"clients": [CLIENT | {"phases": [{"rate": "1"}]}]}, r"phases\[0\].rate must be a number"),
        (
            {"clients": [CLIENT | {"phases": [{"rate": -1.0}]}]},
            r"phases\[0\]: a rate must be finite and above",
        ),
        (
            {"clients": [CLIENT | {"phases": [{"rate": float("nan")}]}]},
            r"phases\[0\].rate must be a number, not nan",
        ),
        ({"clients": [CLIENT | {"weight": float("inf")}]}, "weight of client 'a' must be finite"),
        ({"clients": [CLIENT | {"prompt": 0}]}, "lengths of at least 1 token"),
        ({"duration": float("inf")}, "duration finite"),
        ({"grid": {"seeds": 0}}, "grid: seeds must be at least 1, not 0"),
        ({"grid": {"scales": [-1.0]}}, r"finite numbers above 0, not -1"),
        ({"returns": {"most": -1}}, "returns: most, jitter and checked must be at least 0"),
        ({"device": {"overhead_ms": -500}}, "overhead_ms must be finite and at least 0"),
        ({"clients": [CLIENT | {"phases": []}]}, "has no phases"),
        ({"clients": [CLIENT | {"pairs": "x.csv"}]}, "either prompt and output, or pairs"),
        ({"clients": [CLIENT, CLIENT]}, "two clients have the same name"),
        ({"clients": []}, "either clients or a trace"),
        ({"duration": True}, "duration must be a number, not True"),
        ({"lengths": "known"}, "lengths must be one of declared, unknown, not 'known'"),
        ({"policies": {}}, "at least one policy"),
        ({"grid": {"policies": ["vtc"]}}, "grid names the policy 'vtc'"),
        ({"grid": {"baseline": "edf"}}, "grid names the policy 'edf'"),
        (
            {"grid": {"ratios": [{"policy": "fair", "over": "vtc", "expected": 2.0}]}},
            "grid names the policy 'vtc'",
        ),
        ({"grid": {"show": ["speed"]}}, r"grid.show\[0\] must be one of cached, tpot, outcomes"),
        ({"clients": [CLIENT | {"prefixes": {"count": 0, "tokens": 9}}]}, "prefixes must be at"),
        ({"device": {"jitter": 1.5}}, r"device: jitter must be in \[0, 1\)"),
        ({"device": "a10g"}, "device must be a table"),
        (
            {"clients": [CLIENT | {"prompt": {"kind": "fitted", "name": "x"}}]},
            "no fit is called 'x'",
        ),
    ],
)
def test_what_is_wrong_in_a_scenario_is_named_by_its_place(changes, complaint):
    with pytest.raises(ScenarioError, match=complaint):
        scenario(**changes)


@pytest.mark.parametrize(
    ("kernel", "policy", "complaint"),
    [
        ({"kv_token": 5}, {}, "kernel.kv_tokens must be a whole number"),
        ({"kv_tokens": 100, "max_runing": 5}, {}, "kernel.max_runing is not a key"),
        ({"kv_tokens": 100, "num_blocks": 5}, {}, "kernel.num_blocks follows from other keys"),
        ({"kv_tokens": 5}, {}, "at least one block"),
        ({"kv_tokens": 100, "max_running": 0}, {}, "kernel: max_running must be at least 1"),
        ({"kv_tokens": 100}, {"fairnes": {}}, "policies.fair.fairnes is not a key"),
        ({"kv_tokens": 100}, {"fairness": {"name": "lottery"}}, "policies.fair.fairness: fairness"),
    ],
)
def test_what_is_wrong_in_a_kernel_or_policy_is_named_by_its_place(kernel, policy, complaint):
    wrong = scenario(kernel=kernel, policies={"fair": policy})
    with pytest.raises(ScenarioError, match=complaint):
        kernel_config(wrong, "fair", HostLink())


def test_lengths_are_declared_or_unknown():
    with pytest.raises(ScenarioError, match=r"policies\.fair\.lengths must be one of declared"):
        length_knowledge(scenario(policies={"fair": {"lengths": "secret"}}), "fair")


def test_a_policy_may_change_the_kernel_and_what_is_known():
    table = {"lengths": "unknown", "kernel": {"max_running": 2}, "fairness": {"name": "vtc"}}
    loaded = scenario(policies={"fair": {}, "narrow": table})
    assert kernel_config(loaded, "fair", HostLink()).max_running == 4
    narrow = kernel_config(loaded, "narrow", HostLink())
    assert (narrow.max_running, narrow.policy.fairness.name) == (2, "vtc")
    assert (narrow.num_blocks, narrow.block_size) == (100, 10)
    assert length_knowledge(loaded, "narrow") == "unknown"
    assert length_knowledge(loaded, "fair") == "declared"


def times(phase: Phase | list[Phase], duration: float = 1000.0, scale: float = 1.0) -> np.ndarray:
    phases = tuple(phase) if isinstance(phase, list) else (phase,)
    return arrival_times(phases, duration, scale, np.random.default_rng(3))


def test_uniform_arrivals_are_evenly_spaced():
    found = times(Phase(rate=2.0, process="uniform"))
    assert np.allclose(np.diff(found), 0.5)
    assert 1999 <= len(found) <= 2000
    assert found[0] < 0.5


def test_poisson_arrivals_have_the_rate_and_scattered_gaps():
    gaps = np.diff(times(Phase(rate=5.0), 4000.0))
    assert np.mean(gaps) == pytest.approx(0.2, rel=0.03)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1.0, abs=0.03)
    assert len(times(Phase(rate=5.0), 4000.0, scale=2.0)) == pytest.approx(40_000, rel=0.03)


def test_on_and_off_leave_the_silent_parts_out():
    found = times(Phase(rate=1.0, process="uniform", on=60.0, off=30.0), 900.0)
    assert (found % 90 < 60).all()
    assert len(found) == pytest.approx(600, abs=10)


def test_a_ramp_climbs_in_a_straight_line():
    found = times(Phase(rate=1.0, rate_to=3.0, process="uniform"), 100.0)
    assert len(found) == pytest.approx(200, abs=1)
    assert np.count_nonzero(found < 50) == pytest.approx(75, abs=1)  # mean rate 1.5 there


def test_phases_follow_one_another_within_the_duration():
    phases = [Phase(rate=1.0, process="uniform", seconds=30.0), Phase(rate=4.0, process="uniform")]
    found = times(phases, 40.0)
    assert np.count_nonzero(found < 30) == 30
    assert np.count_nonzero(found >= 30) == 40


def test_lengths_have_their_distribution():
    random = np.random.default_rng(1)
    nowhere = DataFolder()
    assert draw_lengths(256, "prompt", 3, random, nowhere).tolist() == [256] * 3
    exponential = Distribution(kind="exponential", mean=100.0)
    assert draw_lengths(exponential, "output", 20_000, random, nowhere).mean() == pytest.approx(
        100, rel=0.03
    )
    fitted = Distribution(kind="fitted", name="azure23_conv", most=100_000)
    outputs = draw_lengths(fitted, "output", 20_000, random, nowhere)
    assert np.median(outputs) == pytest.approx(np.exp(5.02), rel=0.03)
    clipped = Distribution(kind="lognormal", mu=5.0, sigma=2.0, least=10, most=20)
    drawn = draw_lengths(clipped, "output", 1000, random, nowhere)
    assert (drawn.min(), drawn.max()) == (10, 20)


@needs_data
def test_quantiles_of_a_trace_are_met():
    arena = Distribution(kind="quantiles", name="vtc_lmsys_arena")
    drawn = draw_lengths(arena, "output", 40_000, np.random.default_rng(1), DataFolder())
    assert np.median(drawn) == pytest.approx(211, rel=0.03)
    assert drawn.mean() == pytest.approx(256.2, rel=0.03)
    wrong = Distribution(kind="quantiles", name="arena")
    with pytest.raises(ScenarioError, match="has no trace 'arena'"):
        draw_lengths(wrong, "output", 1, np.random.default_rng(1), DataFolder())


@needs_data
def test_the_published_traces_are_read_as_their_authors_count_them():
    arena = read_trace("vtc_arena_27_clients.csv", DataFolder())
    assert len(arena.times) == 1500
    assert len(set(arena.clients)) == 27
    assert arena.prompts.mean() == pytest.approx(136.265, abs=0.001)
    azure = read_trace("azure_llm_2023_conv.csv", DataFolder(), most=1000)
    assert (azure.prompts[0], azure.outputs[0]) == (374, 44)
    assert azure.times[1] == pytest.approx(4.314579, abs=1e-5)


@needs_data
def test_a_trace_is_replayed_with_its_clients_as_flows():
    replay = {"file": "vtc_arena_27_clients.csv", "weights": {"3": 2.0}}
    loaded = scenario(trace=replay, clients=[], duration=600.0)
    found = make_workload(loaded, 0, 1.0, DataFolder(), A10G_LLAMA2_7B)
    assert len(found.flows) == 27
    assert found.flows[3][0].weight == 2.0
    assert [r.prompt for r in found.requests[:4]] == [13, 36, 456, 72]
    twice = make_workload(loaded, 0, 2.0, DataFolder(), A10G_LLAMA2_7B)
    assert twice.requests[2].arrival == pytest.approx(found.requests[2].arrival / 2, abs=2)
    stranger = scenario(trace=replay | {"weights": {"x": 2.0}}, clients=[])
    with pytest.raises(ScenarioError, match=r"trace\.weights names 'x'"):
        make_workload(stranger, 0, 1.0, DataFolder(), A10G_LLAMA2_7B)


def test_a_workload_depends_on_the_seed_alone_and_copies_are_clients_of_their_own():
    many = CLIENT | {"copies": 3, "under": [{"name": "gold", "weight": 2.0}]}
    loaded = scenario(clients=[many])
    one, same, other = (
        make_workload(loaded, seed, 1.0, DataFolder(), UNIT_TIME) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert [flow[1].name for flow in one.flows] == ["a-1", "a-2", "a-3"]
    assert {flow[0].name for flow in one.flows} == {"gold"}
    assert [r.origin for r in one.requests] == list(range(len(one.requests)))


def test_a_policy_may_say_who_sends_and_everybodys_arrivals_stay():
    rules = {"fair": {}, "alone": {"clients": ["b"]}, "wrong": {"clients": ["c"]}}
    loaded = scenario(clients=[CLIENT, CLIENT | {"name": "b"}], policies=rules)
    assert kernel_config(loaded, "alone", HostLink()).policy == PolicyConfig()
    everyone = make_workload(loaded, 0, 1.0, DataFolder(), UNIT_TIME)
    assert senders_only(everyone, loaded, "fair") == everyone
    sent = senders_only(everyone, loaded, "alone").requests
    assert sent == tuple(r for r in everyone.requests if r.client == 1) != ()
    with pytest.raises(ScenarioError, match=r"policies\.wrong\.clients names 'c', which is no"):
        senders_only(everyone, loaded, "wrong")


def test_prompts_with_a_beginning_in_common_share_its_blocks_and_no_others():
    many = CLIENT | {"prefixes": {"count": 2, "tokens": 40}, "prompt": 64, "copies": 2}
    loaded = scenario(clients=[many, CLIENT | {"name": "b"}], duration=60.0)
    requests = make_workload(loaded, 0, 1.0, DataFolder(), UNIT_TIME).requests
    groups = defaultdict(list)
    for number, request in enumerate(requests):
        groups[request.client, request.prefix].append(prompt_hashes(request, number, 16))
    assert set(groups) == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}
    beginnings = set()
    for (client, _), hashes in groups.items():
        if client == 2:
            assert set(hashes) == {()}
            continue
        (beginning,) = {one[:2] for one in hashes}  # 40 tokens hold two full blocks of 16
        beginnings.add(beginning)
        assert len({one[2:] for one in hashes}) == len(hashes) > 5
        assert {len(one) for one in hashes} == {4}
    assert len(beginnings) == 4


def test_objectives_become_absolute_deadlines():
    objectives = {"first_token": [1.0, 4.0], "completion_alone": 3.0, "completion_least": 5.0}
    loaded = scenario(clients=[CLIENT | {"objectives": objectives}], duration=100.0)
    found = make_workload(loaded, 0, 1.0, DataFolder(), A10G_LLAMA2_7B)
    after = {r.first_token_deadline - r.arrival for r in found.requests}
    assert after == {SECOND, 4 * SECOND}
    assert {r.deadline - r.arrival for r in found.requests} == {5 * SECOND}


def test_time_alone_is_the_prefill_and_the_decodes_one_after_the_other():
    prefill = 35.84 + 0.21314 * 100 + 2
    decode = 16.295 + 0.245 + 2 + 0.002018 * (100 + 50)
    assert time_alone(100, 101, A10G_LLAMA2_7B) == pytest.approx((prefill + 100 * decode) / 1e3)


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ScenarioError, match=r"there is no x\.csv in .*--data"):
        DataFolder(tmp_path).find("x.csv")
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ScenarioError, match="columns a, b, which no trace has"):
        read_trace("odd.csv", DataFolder(tmp_path))
