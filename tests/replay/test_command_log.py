"""The host's command log on a real disk, written beside a real engine thread."""

import asyncio
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from engine.core.commands import Drain, FlowNode
from engine.core.config import KernelConfig
from engine.core.plan import Sampling
from engine.host import command_log
from engine.host.command_log import CommandLog, CommandLogConfig
from engine.host.engine import Engine, GenerationRequest, HostConfig
from engine.sim.executor import SimExecutor, counting_tokens
from engine.sim.profile import A10G_LLAMA2_7B
from loadgen.command_log import CommandLogFile
from telemetry.clock import SystemClock
from telemetry.events import Cause
from telemetry.lineage import Lineage
from tests.replay.recorded import verify

KERNEL = KernelConfig(
    num_blocks=256, max_running=8, max_step_tokens=128, max_context=512, vocab_size=1000
)


def simulated(advance=lambda _duration: None) -> SimExecutor:
    return SimExecutor(A10G_LLAMA2_7B, counting_tokens(1000), advance)


def request(tenant: str, output: int, n: int = 1) -> GenerationRequest:
    return GenerationRequest(
        lineage=Lineage(tenant, "task", "run", "attempt", "request"),
        flow=(FlowNode(tenant),),
        prompt=np.full(20, 7, np.int32),
        n=n,
        max_tokens=output,
        sampling=Sampling(temperature=0.0),
    )


def causes(path: Path, calls, factory=simulated, max_bytes: int = 1 << 20) -> list[Cause]:
    """Serve `calls` with a log at `path`; how each choice ended."""

    async def serve() -> list[Cause]:
        host = HostConfig(command_log=CommandLogConfig(path, max_bytes))
        engine = Engine("sim", KERNEL, factory, SystemClock(), host=host)
        engine.start()
        await engine.ready()
        generations = [engine.generate(call) for call in calls]
        ends = [output.finished for each in generations for output in await _all(each)]
        await engine.stop(1)
        return [end.cause for end in ends if end is not None]

    async def bounded() -> list[Cause]:
        async with asyncio.timeout(30):
            return await serve()

    return asyncio.run(bounded())


async def _all(generation):
    outputs = []
    while new := await generation.next():
        outputs.extend(new)
    return outputs


CALLS = [request("a", 30), request("b", 10, n=3), request("a", 5)]


def test_what_an_engine_did_is_recorded_whole_and_replays(tmp_path):
    path = tmp_path / "logs" / "commands"
    assert causes(path, CALLS) == [Cause.LENGTH] * 5
    verdict = verify(CommandLogFile(path))
    assert (verdict.difference, verdict.end, verdict.header.engine) == (None, "stopped", "sim")
    assert verdict.events > 50
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_each_start_begins_a_log_and_two_older_ones_are_kept(tmp_path):
    path = tmp_path / "commands"
    lengths = []
    for count in range(4):
        causes(path, CALLS[:count])
        lengths.append(len(path.read_bytes()))
    names = ["commands", "commands.1", "commands.2"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert [len((tmp_path / name).read_bytes()) for name in names] == lengths[:0:-1]


class Cut:
    """An executor that dies once, at its fifth step."""

    def __init__(self) -> None:
        self.left = 5

    def __call__(self) -> SimExecutor:
        return simulated(self.advance)

    def advance(self, _duration: int) -> None:
        self.left -= 1
        if not self.left:
            raise OSError("cable cut")


def test_a_log_goes_on_over_the_loss_of_an_executor(tmp_path):
    assert Cause.ENGINE_FAILED in causes(tmp_path / "log", CALLS, Cut())
    verdict = verify(CommandLogFile(tmp_path / "log"))
    assert (verdict.difference, verdict.end) == (None, "stopped")


def test_a_fault_in_the_kernel_ends_the_log_with_its_reason(tmp_path):
    """The next kernel, in the same process, begins a log of its own."""
    broken = request("a", 5)
    broken = GenerationRequest(**{**_fields(broken), "flow": (FlowNode("a", -1.0),)})
    causes(tmp_path / "log", [broken])
    assert verify(CommandLogFile(tmp_path / "log")).end == "stopped"
    assert (tmp_path / "log.1").read_bytes().splitlines()[-1].startswith(b'["z","fault in the k')


def _fields(value: GenerationRequest) -> dict:
    return {name: getattr(value, name) for name in GenerationRequest.__dataclass_fields__}


def test_a_log_at_its_bound_ends_and_serving_goes_on(tmp_path, caplog):
    calls = [request("a", 200) for _ in range(20)]
    slowly = lambda: simulated(lambda _duration: time.sleep(0.001))  # noqa: E731
    assert causes(tmp_path / "log", calls, slowly, max_bytes=60_000) == [Cause.LENGTH] * 20
    verdict = verify(CommandLogFile(tmp_path / "log"))
    assert verdict.difference is None
    assert "largest size" in verdict.end
    assert "serving goes on: it has reached its largest size" in caplog.text


def test_a_log_that_cannot_be_created_is_told_and_serving_goes_on(tmp_path, caplog):
    (tmp_path / "file").touch()
    assert causes(tmp_path / "file" / "log", CALLS) == [Cause.LENGTH] * 5
    assert "serving goes on: " in caplog.text


def test_a_full_disk_ends_recording_not_serving(tmp_path, caplog, monkeypatch):
    create = command_log._create
    monkeypatch.setattr(command_log, "_create", lambda _path: create(Path("/dev/full")))
    assert causes(tmp_path / "log", CALLS) == [Cause.LENGTH] * 5
    assert "serving goes on: No space left on device" in caplog.text


def test_a_writer_that_falls_behind_gives_up_instead_of_growing(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(command_log, "MAX_PENDING", 100)
    monkeypatch.setattr(command_log, "GATHER", 0.05)
    log = CommandLog(CommandLogConfig(tmp_path / "log"), KERNEL, "sim")
    for now in range(150):
        log.command(now, Drain())
    assert not log.recording
    log.close("stopped")
    assert "it cannot be written as fast as the engine works" in caplog.text
    assert verify(CommandLogFile(tmp_path / "log")).end.startswith("it cannot")


@pytest.mark.parametrize("records", [0, 3])
def test_closing_writes_what_is_pending(tmp_path, records):
    log = CommandLog(CommandLogConfig(tmp_path / "log"), KERNEL, "sim")
    for now in range(records):
        log.plan(now)
    log.close("stopped")
    assert (tmp_path / "log").read_bytes().count(b'["p",') == records
