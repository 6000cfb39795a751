"""A part in a process of its own: what it finds comes line by line, until it ends or is ended."""

import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from engine.runtime.device_check.report import Row

LONGEST = 400  # characters of an error that are told


def tell(rows: Iterator[Row]) -> int:
    """In the part's process: write each row to standard output as it is found; the exit status.

    What libraries print goes to standard error from here on.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        for row in rows:
            out.write(json.dumps(asdict(row)) + "\n")
            out.flush()
    except Exception as error:  # noqa: BLE001 — whatever it is, it is this part's finding
        traceback.print_exc()
        fault = f"{type(error).__name__}: {error}"
        out.write(json.dumps({"fault": fault[:LONGEST]}) + "\n")
        out.flush()
        return 1
    return 0


def listen(command: Sequence[str], limit: float, hear: Callable[[Row], None]) -> str:
    """Run a part for at most `limit` seconds, handing rows to `hear`; what went wrong, or ""."""
    fault, late = "", threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit, end)
        timer.start()
        try:
            assert process.stdout is not None  # it is a pipe
            for line in process.stdout:
                if not line.startswith("{"):  # a library that prints as it is imported
                    sys.stderr.write(line)
                    continue
                found = json.loads(line)
                if "fault" in found:
                    fault = found["fault"]
                else:
                    hear(Row(**found))
            status = process.wait()
        finally:
            timer.cancel()
            process.kill()  # where this process was interrupted; else it has ended
    if late.is_set():
        return f"it was ended after {limit:.0f} s"
    return fault or ("" if status == 0 else f"its process ended with status {status}")


def command_for(part: str, options: Sequence[str]) -> list[str]:
    """What runs `part` alone."""
    return [sys.executable, "-m", "engine.runtime.device_check", "--part", part, *options]
