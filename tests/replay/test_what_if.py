"""What another policy would have done with recorded work, and the command that shows it."""

import json
import re

import pytest
from click.testing import CliRunner

from engine.core.commands import Abort, Finish
from engine.core.journal_records import JournalError
from engine.core.plan import Sampling
from engine.sim.profile import UNIT_TIME
from gateway.cli.replay import replay
from loadgen.command_log import CommandLogFile
from loadgen.replay import what_if
from policies.config import PolicyConfig
from policies.fairness.config import FairnessConfig
from telemetry.events import Cause
from telemetry.units import SECOND
from tests.kernel.world import config
from tests.replay.histories import Talk
from tests.replay.recorded import RecordedWorld

STOPPING = Sampling(temperature=0.0, stop_token_ids=((8 + 23 * 31) % 97,))  # at output 24
FAIR, FCFS = (PolicyConfig(fairness=FairnessConfig(name)) for name in ("fair", "fcfs"))


def flooded(path, **changes) -> CommandLogFile:
    """`a` floods one of two slots' worth of engine, then `b` asks for little."""
    world = RecordedWorld(config(**({"max_running": 2, "num_blocks": 400} | changes)))
    for _ in range(10):
        world.submit("a", 20, 30)
    for _ in range(20):
        world.step()
    for _ in range(3):
        world.submit("b", 10, 5)
    world.run()
    return world.log(path)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_recorded_policy_gives_about_what_was_recorded(tmp_path, in_flight):
    found = what_if(flooded(tmp_path / "log", max_in_flight=in_flight), FAIR)
    assert found.again == found.other
    for tenant in ("a", "b"):
        recorded, again = found.recorded[tenant], found.again[tenant]
        assert again.ended == recorded.ended == {"length": recorded.offered}
        assert again.prompt_tokens == recorded.prompt_tokens
        assert again.output_tokens == recorded.output_tokens
        assert again.first_token == pytest.approx(recorded.first_token, rel=0.05)
        assert again.completion == pytest.approx(recorded.completion, rel=0.05)


def test_another_policy_changes_who_waits(tmp_path):
    """In order of arrival, `b` waits for all ten of `a`; fairly, it is next."""
    found = what_if(flooded(tmp_path / "log"), FCFS)
    assert max(found.again["b"].first_token) < min(found.other["b"].first_token) / 2
    assert sum(found.other["a"].completion) < sum(found.again["a"].completion)
    assert found.other["b"].output_tokens == 15


def test_step_times_are_those_of_the_log(tmp_path):
    world = RecordedWorld(config(max_running=4), profile=UNIT_TIME)
    world.submit("a", 30, 10)
    world.run()
    world.clock.advance(500 * SECOND)  # idle, which is not the time of a step
    world.submit("a", 30, 10)
    world.run()
    found = what_if(world.log(tmp_path / "log"), FCFS)
    assert found.steps == 20
    assert found.error < 0.03
    assert found.again["a"].completion == pytest.approx([10.0, 10.0], rel=0.03)


def test_lengths_are_those_of_the_recording(tmp_path):
    """Ends by stop token, stop string and cap stay, and what was aborted is aborted again."""
    world = Talk(config(num_blocks=400))
    world.say("a", [8] * 10, 60, sampling=STOPPING)
    world.say("a", [9] * 10, 7)
    world.say("b", [3] * 10, 60)
    world.say("b", [4] * 10, 60)
    for _ in range(12):
        world.step()
    world.apply(Finish(3, 9))
    world.apply(Abort((4,), Cause.DISCONNECTED))
    world.run()
    assert [world.ended[n].cause for n in (1, 2, 3, 4)] == [
        Cause.STOP,
        Cause.LENGTH,
        Cause.STOP_STRING,
        Cause.DISCONNECTED,
    ]
    found = what_if(world.log(tmp_path / "log"), FCFS)
    assert found.other["a"].ended == {"stop": 1, "length": 1}
    assert found.other["a"].output_tokens == sum(world.ended[n].output_tokens for n in (1, 2))
    assert found.other["b"].ended == {"stop": 1, "disconnected": 1}


def test_the_loss_of_an_executor_happens_again(tmp_path):
    world = Talk(config(num_blocks=400, block_size=8, max_in_flight=2))
    for _ in range(4):
        world.say("a", [8] * 10, 20)
    for _ in range(5):
        world.step()
    world.lose()
    world.say("a", [8] * 10, 20)
    world.run()
    found = what_if(world.log(tmp_path / "log"), FCFS)
    assert found.other["a"].ended == found.recorded["a"].ended
    assert found.other["a"].ended["engine_failed"] == 4


def test_an_empty_log_has_no_step_times(tmp_path):
    with pytest.raises(JournalError, match="no step was recorded"):
        what_if(RecordedWorld().log(tmp_path / "log"), FCFS)


def run(*arguments: object, code: int = 0):
    result = CliRunner().invoke(replay, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def test_the_command_says_that_decisions_are_identical(tmp_path):
    log = flooded(tmp_path / "log")
    assert run(log.path).stdout.startswith("identical: ")
    found = json.loads(run(log.path, "--json").stdout)
    assert (found["identical"], found["complete"], found["difference"]) == (True, True, None)


def test_the_command_shows_the_first_difference(tmp_path):
    log = flooded(tmp_path / "log")
    raw = log.path.read_bytes()
    log.path.write_bytes(raw.replace(b'"slot":1', b'"slot":3', 1))
    result = run(log.path, code=1)
    lines = result.stdout.splitlines()
    assert "differs, after" in lines[0]
    assert '"slot":3' in lines[1]
    assert '"slot":1' in lines[2]
    assert "error: the decisions are not those recorded" in result.stderr
    difference = json.loads(run(log.path, "--json", code=1).stdout)["difference"]
    assert f"line {difference['line']} differs" in lines[0]
    assert "decides otherwise" in run(log.path, "--policy", "fcfs", code=1).stderr


def test_the_command_tells_a_log_that_breaks_off(tmp_path):
    log = flooded(tmp_path / "log")
    log.path.write_bytes(log.path.read_bytes()[:-200])
    result = run(log.path, code=1)
    assert result.stdout.startswith("identical: ")
    assert "the log breaks off after line" in result.stderr


def test_the_command_refuses_what_is_no_log(tmp_path):
    assert "cannot read" in run(tmp_path / "none", code=1).stderr
    (tmp_path / "log").write_text("hello\n")
    assert "not a command log" in run(tmp_path / "log", code=1).stderr


def test_the_command_compares_policies_side_by_side(tmp_path):
    log = flooded(tmp_path / "log")
    result = run(log.path, "--policy", "fcfs")
    assert "typical error" in result.stderr
    cells = [re.split(r"\s{2,}", line) for line in result.stdout.splitlines()]
    assert cells[0][:3] == ["tenant", "run", "offered"]
    names = ["recorded", "fair, simulated", "fcfs, simulated"]
    assert [line[1] for line in cells[1:]] == names * 2
    figures = json.loads(run(log.path, "--policy", "fcfs", "--json").stdout)
    assert figures["recorded"]["b"]["ended"] == {"length": 3}
    waits = [figures[run]["b"]["ttft"]["p50"] for run in list(figures)[-2:]]
    assert waits[0] < waits[1] / 2


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("warp", "fairness must be one of"),
        ("ordering=warp", "ordering must be one of"),
        ("flux.x=1", "flux is not a key"),
        ("ordering.x=1", "ordering.x is not a key"),
        ("fairness.max_lag=much", "max_lag must be a number"),
    ],
)
def test_a_policy_that_does_not_exist_is_refused(tmp_path, policy, message):
    log = flooded(tmp_path / "log")
    assert message in run(log.path, "--policy", policy, code=2).stderr


def test_any_key_of_a_policy_may_be_changed(tmp_path):
    log = flooded(tmp_path / "log")
    policy = "vtc,ordering=sjf,fairness.max_lag=500,pause=false"
    assert f"{policy}, simulated" in run(log.path, "--policy", policy).stdout
