"""A recorded kernel is repeated decision by decision, without the tokens it worked on."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from engine.core.journal_records import JournalError
from engine.core.plan import Sampling
from loadgen.command_log import CommandLogFile, ReplayedFaultError, Verifier
from telemetry.events import Cause, SequenceAdmitted, SequencePreempted
from tests.kernel.world import config
from tests.replay.histories import HISTORIES, KERNELS, STOPS, Talk
from tests.replay.recorded import RecordedWorld, verify

ROOT = Path(__file__).parents[2]


def test_blocks_of_answers_are_found_again_in_a_replay(tmp_path):
    """The second turn's prompt holds the first answer; its cached prefix reaches into it."""
    world = Talk(config(block_size=8))
    world.say("a", [3] * 20, 30, n=2, sampling=Sampling(temperature=0.0, seed=1))
    world.run()
    world.play([("follow", 0, 4, 10), ("follow", 1, 4, 10)])
    turns = [event.cached_tokens for event in world.of(SequenceAdmitted)[-2:]]
    assert min(turns) > 40
    assert verify(world.log(tmp_path / "log")).difference is None


@settings(max_examples=50, deadline=None)
@given(HISTORIES, KERNELS)
def test_random_histories_replay_to_the_same_bytes(tmp_path_factory, actions, kernel):
    world = Talk(kernel)
    world.play(actions)
    verdict = verify(world.log(tmp_path_factory.getbasetemp() / "commands.log"))
    assert verdict.difference is None
    assert (verdict.events, verdict.end) == (len(world.events), "stopped")


def _busy() -> Talk:
    """Two tenants in a pool too small for both, then one more turn."""
    world = Talk(config(num_blocks=40, block_size=8, kv_reserve=0.0, max_in_flight=2))
    for tenant in "abab":
        world.say(tenant, [ord(tenant)] * 50, 60, n=2, sampling=STOPS)
    world.say("b", [1] * 30, 40)
    world.run()
    world.play([("follow", number, 3, 5) for number in range(5)])
    return world


def test_work_that_is_taken_back_replays(tmp_path):
    world = _busy()
    assert world.of(SequencePreempted)
    assert {Cause.STOP, Cause.LENGTH} <= {finished.cause for finished in world.ended.values()}
    assert verify(world.log(tmp_path / "log")).difference is None


class Unhashed(RecordedWorld):
    """A caller that leaves hashing its prompts to the kernel, as the simulator does."""

    def apply(self, command) -> None:
        super().apply(replace(command, block_hashes=()))


def test_hashes_that_the_kernel_computes_of_prompts_replay_too(tmp_path):
    world = Unhashed(config(num_blocks=20, kv_reserve=0.0, max_step_tokens=128))
    for _ in range(4):
        world.submit("a", 70, 64)
    world.run()
    assert world.of(SequencePreempted)
    assert verify(world.log(tmp_path / "log")).difference is None


SCRIPT = """
import sys
from pathlib import Path
from loadgen.command_log import CommandLogFile
from tests.replay.histories import HISTORIES, KERNELS, STOPS, Talk
from tests.replay.recorded import verify
verdict = verify(CommandLogFile(Path(sys.argv[1])))
print(verdict.difference, verdict.events)
"""


@pytest.mark.parametrize("seed", ["1", "77"])
def test_the_hash_seed_of_the_process_does_not_matter(tmp_path, seed):
    world = _busy()
    world.log(tmp_path / "log")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "log"],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"None {len(world.events)}\n"


def test_nothing_of_prompts_and_answers_is_in_the_log(tmp_path):
    """Equal histories over other tokens give equal logs but for the block hashes."""
    logs = []
    for token in (123, 456):
        world = RecordedWorld()
        world.submit("a", [token] * 40, 40, salt=b"s")
        world.run()
        logs.append([line for line in world.recorder.lines if not line.startswith(b'["h"')])
        assert len(world.recorder.lines) > len(logs[-1])
    hashes = [json.loads(log[1])[3].pop("block_hashes") for log in logs]
    assert [len(found) for found in hashes] == [2, 2]
    assert not set(hashes[0]) & set(hashes[1])
    assert logs[0][2:] == logs[1][2:]


def test_a_decision_that_differs_is_shown(tmp_path):
    world = _busy()
    log = world.log(tmp_path / "log")
    lines = log.path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b"SequencePreempted" in line)
    lines[at] = lines[at].replace(b'"reason":"', b'"reason":"not_')
    log.path.write_bytes(b"".join(lines))
    difference = verify(log).difference
    assert difference.line == at + 1
    assert difference.recorded.replace("not_", "") == difference.replayed


def test_a_kernel_that_plans_otherwise_is_told_by_its_first_decision(tmp_path):
    """The recorded results no longer fit; what is shown is the event, not the misfit."""
    log = _busy().log(tmp_path / "log")
    changed = replace(log.header.kernel, max_running=2)
    log.header = replace(log.header, kernel=changed)
    difference = verify(log).difference
    assert json.loads(difference.recorded)["event"] == "SequenceAdmitted"  # the third one
    assert json.loads(difference.replayed)["event"] == "FlowStalled"


def test_a_log_that_breaks_off_is_repeated_as_far_as_it_goes(tmp_path):
    log = _busy().log(tmp_path / "log", end=None)
    assert verify(log).end is None
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[: len(whole) // 2])
    verdict = verify(log)
    assert (verdict.end, verdict.difference) == (None, None)
    assert verdict.events > 100


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (b"", "its first line is not a header"),
        (b"hello\n", "its first line is not a header"),
        (b'{"event":"FlowStalled"}\n', "its first line is not a header"),
        (b'{"log":"watermaster command log","format":99}\n', "format 99, .* reads format 3"),
        (
            b'{"log":"watermaster command log","format":3,"kernel":{"num_blocks":4,"warp":9}}\n',
            "has a field 'warp' that is not known here",
        ),
        (b'{"log":"watermaster command log","format":3,"kernel":{}}\n', "lacks the field"),
        (
            b'{"log":"watermaster command log","format":3,"kernel":{"num_blocks":0}}\n',
            "num_blocks must be at least 1",
        ),
    ],
)
def test_what_is_no_log_of_ours_is_refused(tmp_path, first, message):
    (tmp_path / "log").write_bytes(first)
    with pytest.raises(JournalError, match=message):
        CommandLogFile(tmp_path / "log")


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b"nonsense",
        b'["c",1,"Fly",{}]',
        b'["c",1,"Abort",{"sequences":[1]}]',
        b'["c",1,"Abort",{"sequences":[1],"cause":"boredom"}]',
        b'["r",1,{"step":1}]',
    ],
)
def test_a_broken_record_is_named_by_its_line(tmp_path, line):
    log = RecordedWorld().log(tmp_path / "log")
    log.path.write_bytes(log.path.read_bytes() + line + b"\n")
    with pytest.raises(JournalError, match="line 3 is not a record"):
        verify(log)


def test_a_missing_log_is_told():
    with pytest.raises(JournalError, match="cannot read /nowhere/log: No such file"):
        CommandLogFile(Path("/nowhere/log"))


def test_a_fault_of_the_kernel_happens_again(tmp_path):
    """A record that breaks the kernel is in the log, since it is written before it is done."""
    world = RecordedWorld()
    world.submit("a", 10, 5)
    lines = world.recorder.lines
    lines.append(lines[1].replace(b'"weight":1.0', b'"weight":-1.0').replace(b"[1]", b"[2]"))
    log = world.log(tmp_path / "log", end="fault in the kernel")
    with pytest.raises(ReplayedFaultError, match=r"line 4: ValueError\(.*must be positive"):
        Verifier(log).run()
