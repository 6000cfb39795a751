"""Correctness and speed on this machine's card, as a table and as JSON."""

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from engine.runtime.device_check.mixed import NAME as MIXED
from engine.runtime.device_check.parts import PARTS, Part
from engine.runtime.device_check.peers import NAME as PEER
from engine.runtime.device_check.peers import comparison
from engine.runtime.device_check.process import command_for, listen, tell
from engine.runtime.device_check.report import Row, save, table
from engine.runtime.device_check.target import DRY, Sizes, Target
from engine.runtime.random_weights import GEOMETRIES, geometry

LIMIT = 480  # seconds that the whole may take
SHORTEST = 10  # seconds without which a part is not begun


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 when something was not correct or a part failed, 2 without a card."""
    options = _parser().parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        print("torch finds no CUDA device here; --dry-run shows the table on the CPU")
        return 2
    name = options.random_weights or ("tiny" if options.dry_run else "llama-3-8b")
    if options.part:
        part = next(part for part in PARTS if part.name == options.part)
        target = _target(options.limit, dry=options.dry_run)
        status = tell(part.rows(target, geometry(name)))
        os._exit(status)  # a library's thread that hangs would not let the process end
    check = Check(options.dry_run, name, options.limit, options.json)
    check.run([part for part in PARTS if not options.only or part.name in options.only])
    print(check.told())
    return 1 if check.faults or any(r.must and r.met is False for r in check.rows) else 0


@dataclass
class Check:
    """All findings so far. They are saved as they come, so that a run cut short keeps them."""

    dry: bool
    geometry: str
    limit: float
    file: Path | None
    rows: list[Row] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    def run(self, parts: Sequence[Part]) -> None:
        usual = sum(part.usual for part in parts)
        self._say(f"{len(parts)} parts, about {usual} s on a large card, at most {self.limit} s:")
        for part in parts:
            self._say(f"  {part.name}: {part.does}; about {part.usual} s, at most {part.limit} s")
        for part in parts:
            self._run(part)

    def told(self) -> str:
        """For people."""
        about = "\n".join(f"{key}: {value}" for key, value in self._about().items())
        return f"{about}\n\n{table(self.rows)}"

    def _run(self, part: Part) -> None:
        left = self.limit - self._elapsed()
        if left < SHORTEST:
            self._hear(Row(f"part {part.name}", note="no time was left for it"))
            return
        self._say(f"part {part.name} begins")
        before = self._elapsed()
        # a CPU's time says nothing of a card's
        limit = left if self.dry else min(part.limit, left)
        options = ["--random-weights", self.geometry, "--limit", f"{limit:.0f}"]
        options += ["--dry-run"] if self.dry else []
        fault = listen(command_for(part.name, options), limit, self._hear)
        self.seconds[part.name] = round(self._elapsed() - before, 1)
        if fault:
            self.faults[part.name] = fault
            self._hear(Row(f"part {part.name}", note=f"FAILED: {fault}"))
        found = {row.name: row for row in self.rows}
        if part.name == "peer" and MIXED in found and PEER in found:
            for row in comparison(found[MIXED], found[PEER]):
                self._hear(row)
        self._save()

    def _hear(self, row: Row) -> None:
        # a card's goals and limits mean nothing on a CPU
        kept = replace(row, goal=None, share=None) if self.dry and not row.must else row
        self.rows.append(kept)
        self._say(" | ".join(cell for cell in kept.cells if cell))
        self._save()

    def _save(self) -> None:
        if self.file:
            save(self.file, self._about(), self.rows)

    def _say(self, line: str) -> None:
        print(f"[{self._elapsed():6.1f} s] {line}", file=sys.stderr, flush=True)

    def _elapsed(self) -> float:
        return time.perf_counter() - self.began

    def _about(self) -> dict[str, object]:
        about: dict[str, object] = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
        if self.dry:
            about["dry run"] = "on the CPU at tiny sizes: its times say nothing about a card"
        else:
            from triton import __version__ as triton_version

            about |= {"card": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
            about["triton"] = triton_version
        versions = {"torch": torch.__version__, "numpy": np.__version__}
        about |= {"python": platform.python_version(), "geometry": self.geometry} | versions
        return about | {"seconds": round(self._elapsed(), 1), "seconds by part": self.seconds}


def _target(limit: float, *, dry: bool) -> Target:
    """Where what may take long is done in a part's time of `limit` seconds."""
    sizes = DRY if dry else Sizes()
    sizes = replace(sizes, patience=min(sizes.patience, limit / 2))
    if dry:
        torch.set_num_threads(1)
        return Target(torch.device("cpu"), torch.float32, sizes)
    return Target(torch.device("cuda", torch.cuda.current_device()), torch.bfloat16, sizes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine.runtime.device_check", description=__doc__
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, at tiny sizes")
    parser.add_argument(
        "--random-weights", choices=sorted(GEOMETRIES), help="geometry of the model (llama-3-8b)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there too")
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="PART", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT, metavar="SECONDS", help="of the whole (%(default)s)"
    )
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
