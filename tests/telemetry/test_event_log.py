import json
import subprocess
import sys
from threading import Thread
from typing import get_args

import numpy as np
import pytest

from telemetry.event_log import EventLog, encode
from telemetry.events import (
    CancelApplied,
    Cause,
    Event,
    FlowLifted,
    FlowStalled,
    SequenceRefused,
    Stall,
    StepPlanned,
)
from telemetry.lineage import Lineage, Scope


def lifted(now: int) -> FlowLifted:
    return FlowLifted(now, ("gold",), 0.0, 1.0)


def test_keeps_the_last_events() -> None:
    log = EventLog(3)
    log.extend([lifted(1), lifted(2)])
    assert log.snapshot() == (lifted(1), lifted(2))
    log.extend(lifted(now) for now in (3, 4))
    assert log.snapshot() == (lifted(2), lifted(3), lifted(4))
    log.extend(map(lifted, range(10, 20)))
    assert log.snapshot() == (lifted(17), lifted(18), lifted(19))


def test_refuses_no_capacity() -> None:
    with pytest.raises(ValueError, match="capacity"):
        EventLog(0)


def test_threads_lose_nothing() -> None:
    log = EventLog(8000)

    def add() -> None:
        for now in range(2000):
            log.extend([lifted(now)])
            if now % 100 == 0:
                log.snapshot()

    threads = [Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.snapshot()) == 8000


def test_a_line_names_the_type_and_sorts_the_fields() -> None:
    assert encode(FlowStalled(5, ("gold", "ann"), Stall.KV_BLOCKS)) == (
        b'{"cause":"kv_blocks","event":"FlowStalled","flow":["gold","ann"],"now":5,"sequence":null}'
    )
    refused = SequenceRefused(
        7, 1, Lineage("gold", "t", "r", "a", "q"), Cause.QUEUE_FULL, 'say "no"\n', None
    )
    assert encode(refused) == (
        b'{"cause":"queue_full","detail":"say \\"no\\"\\n","event":"SequenceRefused","lineage":'
        b'{"attempt":"a","key":"","request":"q","run":"r","task":"t","tenant":"gold"},"now":7,'
        b'"promised":false,"retry_after":null,"sequence":1}'
    )


def test_numbers_are_exact() -> None:
    line = json.loads(encode(FlowLifted(2**62 + 1, ("g",), 0.1, 1 / 3)))
    assert (line["now"], line["before"], line["after"]) == (2**62 + 1, 0.1, 1 / 3)


def test_refuses_what_is_not_plain() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode(FlowLifted(1, ("g",), 0.0, float("inf")))
    with pytest.raises(TypeError):
        encode(FlowLifted(np.int64(1), ("g",), 0.0, 0.0))  # type: ignore[arg-type]


def test_every_field_of_every_event_is_plain() -> None:
    """A field of a set or a mapping type would tie the bytes to the order of hashing."""
    unordered = [
        (kind.__name__, name)
        for kind in get_args(Event)
        for name, annotation in kind.__annotations__.items()
        if any(word in str(annotation) for word in ("set[", "dict[", "Mapping", "Any"))
    ]
    assert unordered == []


SCRIPT = """
from telemetry.event_log import encode
from telemetry.events import CancelApplied, Cause, StepPlanned
from telemetry.lineage import Scope
print(encode(CancelApplied(1, Scope("gold", "t"), Cause.CANCELLED, 1, 2, 3)).decode())
print(encode(StepPlanned(2, 1, (1, 2), (0, 0), (5, 1), 2, 0, 9, 1, 2)).decode())
"""


def test_equal_logs_are_equal_bytes_in_every_process() -> None:
    expected = b"\n".join(
        [
            encode(CancelApplied(1, Scope("gold", "t"), Cause.CANCELLED, 1, 2, 3)),
            encode(StepPlanned(2, 1, (1, 2), (0, 0), (5, 1), 2, 0, 9, 1, 2)),
            b"",
        ]
    )
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        assert done.stdout == expected
