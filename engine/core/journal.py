"""The command log of a kernel: everything that went in, and the decisions that came out.

A log is lines of bytes. The first is a header with the kernel's configuration. Then follow, in the
order in which the engine thread did them, a JSON array for each thing done to the kernel and, as
`telemetry.event_log.encode` writes it, a JSON object for each event:

    ["c", now, "Submit", {…}]      a command was applied
    ["p", now]                     a step was asked for (whether or not there was one)
    ["r", now, {…}]                the result of the oldest step in flight was committed
    ["h", sequence, i, "hash", …]  hashes of blocks i, i + 1, … that a sequence has generated
    ["z", "reason"]                the recording ended in good order

No content is kept. Decisions depend on tokens in three ways, and only these are written down: how
many there are, whether one is a stop token of its sequence, and which KV blocks hold the same
tokens. For the last, every block hash (of the prompt's full blocks, and of generated ones as they
fill) is replaced by its keyed BLAKE2b under a secret that is drawn for each log and never stored:
equal blocks can be told, but no prompt or answer can be found by guessing it. A replay puts
placeholders for the tokens.

This module is pure; `engine.host.command_log` writes logs and `loadgen.command_log` reads them.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from engine.core.commands import Command, Submit
from engine.core.config import KernelConfig
from engine.core.hashing import next_hash
from engine.core.plain import to_plain
from engine.core.plan import StepPlan, StepResult
from telemetry.event_log import encode
from telemetry.events import (
    Event,
    SequenceArrived,
    SequenceEnded,
    SequenceRefused,
    StepCommitted,
)

KIND = "watermaster command log"
FORMAT = 3
STOPPED = "stopped"  # the reason of an end at which nothing was left out
KEY_BYTES = 32
ALIAS_BYTES = 10  # a million different blocks collide with a chance of one in 10^12


@dataclass(slots=True)
class _Growing:
    """A live sequence: its stop tokens, and what the hash of its next full block is made of."""

    stops: frozenset[int]
    parent: bytes
    blocks: int  # full ones so far
    tail: list[int]  # tokens since the last full block


class JournalEncoder:
    """Turns what is done to one kernel into the lines of its log, in the order in which it is done.

    `key` (KEY_BYTES of chance) hides the block hashes; only its holder can link them to content.
    Remembers live sequences alone.
    """

    def __init__(self, config: KernelConfig, key: bytes) -> None:
        self._config = config
        self._key = key
        self._live: dict[int, _Growing] = {}
        self._offered: dict[int, _Growing] = {}  # submitted, with no event about them yet
        self._drawn: dict[int, dict[int, list[int]]] = {}  # step -> sequence -> tokens

    def header(self, engine: str) -> bytes:
        """The first line; `engine` names the model."""
        return _line(
            {"log": KIND, "format": FORMAT, "engine": engine, "kernel": to_plain(self._config)}
        )

    def command(self, now: int, command: Command) -> bytes:
        """A command that is applied at `now`."""
        data = self._submit(command) if isinstance(command, Submit) else to_plain(command)
        return _line(["c", now, type(command).__name__, data])

    def plan(self, now: int) -> bytes:
        """A step is asked for at `now`."""
        return _line(["p", now])

    def result(self, now: int, plan: StepPlan, result: StepResult) -> bytes:
        """`result` of `plan` is committed at `now`."""
        counts, tokens = result.token_counts.tolist(), result.tokens.tolist()
        drawn: dict[int, list[int]] = {}
        stops = []
        at = 0
        for sequence, count in zip(plan.sequences.tolist(), counts, strict=True):
            if not count:
                continue
            own = drawn[sequence] = tokens[at : at + count]
            known = self._live.get(sequence) or self._offered.get(sequence)
            if known is not None and known.stops:
                stops += [at + i for i, token in enumerate(own) if token in known.stops]
            at += count
        self._drawn[result.step] = drawn
        data: dict[str, Any] = {
            "step": result.step,
            "duration": result.duration,
            "stall": result.stall,
            "counts": counts,
            "stops": stops,
        }
        if result.failures:
            data["failures"] = {row: to_plain(fail) for row, fail in result.failures.items()}
        return _line(["r", now, data])

    def events(self, events: Iterable[Event]) -> list[bytes]:
        """The events of what was done since the last call."""
        lines: list[bytes] = []
        ended = []
        for event in events:
            match event:
                case SequenceArrived():
                    self._live[event.sequence] = self._offered.pop(event.sequence)
                case SequenceRefused():
                    self._offered.pop(event.sequence, None)
                case StepCommitted():
                    lines += self._generated(event)
                case SequenceEnded():
                    ended.append(event.sequence)
            lines.append(encode(event) + b"\n")
        for sequence in ended:
            self._live.pop(sequence, None)
        return lines

    def end(self, reason: str) -> bytes:
        """The last line."""
        return _line(["z", reason])

    def _submit(self, submit: Submit) -> dict[str, Any]:
        size = self._config.block_size
        prompt, sampling = submit.prompt, submit.sampling
        tail = prompt[len(submit.block_hashes) * size :].tolist()
        parent = submit.block_hashes[-1] if submit.block_hashes else submit.salt
        for sequence in submit.sequences:
            stops = frozenset(sampling.stop_token_ids)
            blocks = len(submit.block_hashes)
            self._offered[sequence] = _Growing(stops, parent, blocks, list(tail))
        special = ("prompt", "salt", "block_hashes", "sampling")
        data = {
            name: to_plain(getattr(submit, name))
            for name in Submit.__dataclass_fields__
            if name not in special
        }
        known = np.logical_and(prompt >= 0, prompt < self._config.vocab_size).all()
        return data | {
            "prompt": {"tokens": len(prompt), "in_vocabulary": bool(known)},
            "block_hashes": [self._alias(block) for block in submit.block_hashes],
            "sampling": {
                "stops": bool(sampling.stop_token_ids),
                "min_tokens": sampling.min_tokens,
                "constraint": sampling.constraint is not None,
            },
        }

    def _generated(self, event: StepCommitted) -> list[bytes]:
        """Lines for the blocks that the tokens kept of a step have filled."""
        drawn = self._drawn.pop(event.step, {})
        lines = []
        for sequence, kept in zip(event.sequences, event.output_tokens, strict=True):
            growing = self._live.get(sequence)
            if growing is None:
                continue
            growing.tail += drawn[sequence][:kept]
            first, full = growing.blocks, self._fill(growing)
            if full:
                lines.append(_line(["h", sequence, first, *full]))
        return lines

    def _fill(self, growing: _Growing) -> Sequence[str]:
        size = self._config.block_size
        full = []
        while len(growing.tail) >= size:
            block = np.asarray(growing.tail[:size], np.int32)
            del growing.tail[:size]
            growing.parent = next_hash(growing.parent, block)
            full.append(self._alias(growing.parent))
        growing.blocks += len(full)
        return full

    def _alias(self, block_hash: bytes) -> str:
        return blake2b(block_hash, key=self._key, digest_size=ALIAS_BYTES).hexdigest()


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
