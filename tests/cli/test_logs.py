"""Log lines: one a record, with their fields, and never a secret."""

import json
import logging
from collections.abc import Iterator

import pytest

from gateway import logs

RAW = "wm-0123456789ab-" + "s3cretS3CRET" * 3


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    handlers, levels = root.handlers[:], (root.level, uvicorn.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    uvicorn.setLevel(levels[1])


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
    log.info("key %s at redis://user:hunter2@host:1/0", RAW, extra={"again": RAW})
    try:
        raise ValueError(RAW)
    except ValueError:
        log.exception("failed")
    shown = capsys.readouterr().err
    assert "s3cret" not in shown
    assert "hunter2" not in shown
    assert "wm-0123456789ab-***" in shown
    assert "redis://***@host:1/0" in shown
