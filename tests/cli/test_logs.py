"""Log lines: one a record, with their fields, and never a secret."""

import json
import logging
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway import logs
from telemetry.clock import SystemClock
from telemetry.tracing import Tracing

RAW = "wm-0123456789ab-" + "s3cretS3CRET" * 3


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    changed = (root, *map(logging.getLogger, ("uvicorn", "opentelemetry.trace")))
    handlers, levels = root.handlers[:], [logger.level for logger in changed]
    yield
    root.handlers[:] = handlers
    for logger, level in zip(changed, levels, strict=True):
        logger.setLevel(level)


def test_text_lines_carry_level_message_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("info", "text")
    logging.getLogger("some").debug("hidden")
    logging.getLogger("some").info("hello %s", "you", extra={"tenant": "gold"})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("Z INFO    hello you tenant=gold".replace("Z", "+00:00"))


def test_json_lines_are_one_object_each(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("debug", "json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("some").exception("it failed", extra={"status": 500})
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "some", "it failed")
    assert entry["status"] == 500
    assert entry["exception"].endswith("ValueError: two\nlines")


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_are_masked_wherever_they_stand(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up("info", form)  # type: ignore[arg-type]
    log = logging.getLogger("some")
    log.info("key %s at redis://user:hunter2@host:1/0?password=hunter2", RAW, extra={"again": RAW})
    try:
        raise ValueError(RAW)
    except ValueError:
        log.exception("failed")
    shown = capsys.readouterr().err
    assert "s3cret" not in shown
    assert "hunter2" not in shown
    assert "wm-0123456789ab-***" in shown
    assert "redis://***@host:1/0" in shown


def test_a_caller_cannot_fill_the_log_with_its_trace_headers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.set_up("info", "json")
    tracing = Tracing(SystemClock(), InMemorySpanExporter())
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    for size in (5_000, 60_000):
        tracing.start("chat", {"traceparent": parent, "tracestate": "x=" + "y" * size}, 0)
    tracing.close()
    assert capsys.readouterr().err == ""
