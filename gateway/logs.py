"""The log of the process: standard error, one line a record, never a secret."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from telemetry.secrets import masked

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class _Formatter(logging.Formatter):
    """Masks secrets in whatever a subclass wrote; fields are those of `extra=`."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(self.line(record))

    def line(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        text = f"{_time(record)} {record.levelname:<7} {record.getMessage()}{fields}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _JsonFormatter(_Formatter):
    def line(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def formatter(form: Literal["text", "json"]) -> logging.Formatter:
    return _JsonFormatter() if form == "json" else _Formatter()


def set_up(level: str, form: Literal["text", "json"]) -> None:
    """Send every logger of the process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Their start and stop messages repeat ours.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
    # It tells of every malformed `tracestate`, and repeats it, of whoever calls: no key is needed.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}
