"""A World whose kernel is recorded, and its log on disk."""

from pathlib import Path

from engine.core.commands import Command
from engine.core.journal import STOPPED, JournalEncoder
from engine.core.loop import EngineLoop
from engine.core.plan import StepPlan, StepResult
from loadgen.command_log import CommandLogFile, Verdict, Verifier
from tests.kernel.world import World


class Lines:
    """A recorder that keeps its lines in memory."""

    def __init__(self, config, key: bytes = b"k" * 32) -> None:
        self.encoder = JournalEncoder(config, key)
        self.lines = [self.encoder.header("sim")]

    def command(self, now: int, command: Command) -> None:
        self.lines.append(self.encoder.command(now, command))

    def plan(self, now: int) -> None:
        self.lines.append(self.encoder.plan(now))

    def result(self, now: int, plan: StepPlan, result: StepResult) -> None:
        self.lines.append(self.encoder.result(now, plan, result))


class RecordedWorld(World):
    def use(self, executor) -> None:
        self.executor = executor
        self.recorder = Lines(self.config)
        self.loop = EngineLoop(self.scheduler, executor, self.clock.now, self.recorder)

    def apply(self, command: Command) -> None:
        self.recorder.command(self.clock.now(), command)
        super().apply(command)

    def _collect(self) -> None:
        before = len(self.events)
        super()._collect()
        self.recorder.lines += self.recorder.encoder.events(self.events[before:])

    def log(self, path: Path, end: str | None = STOPPED) -> CommandLogFile:
        ending = [] if end is None else [self.recorder.encoder.end(end)]
        path.write_bytes(b"".join([*self.recorder.lines, *ending]))
        return CommandLogFile(path)


def verify(log: CommandLogFile) -> Verdict:
    return Verifier(log).run()
