"""What was found, as rows of a table and as JSON."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

HEADER = ("what", "measured", "of the limit", "goal", "")
NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    """One finding. `share` is of the limit that stands beside it in `note`; `goal` what `share`,

    or `value` where there is none, is held to: at least, or at most where `at_most`. Without a
    `value` the thing was not measured, and `note` says why.
    """

    name: str
    value: float | None = None
    unit: str = ""
    share: float | None = None
    goal: float | None = None
    at_most: bool = False
    note: str = ""
    must: bool = False  # correctness: without it the rest means nothing
    more: dict[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one, or without a measurement."""
        found = self.value if self.share is None else self.share
        if self.goal is None or found is None:
            return None
        return found <= self.goal if self.at_most else found >= self.goal

    @property
    def cells(self) -> tuple[str, ...]:
        measured = NOT_RUN if self.value is None else f"{_number(self.value)} {self.unit}".strip()
        share = "" if self.share is None else f"{100 * self.share:.1f}%"
        return (self.name, measured, share, self._goal(), self._rest())

    def _goal(self) -> str:
        if self.goal is None:
            return ""
        bound = "≤" if self.at_most else "≥"
        size = f"{_number(self.goal)} {self.unit}" if self.share is None else f"{self.goal:.0%}"
        verdict = {True: " met", False: " MISSED", None: ""}[self.met]
        return f"{bound} {size.strip()}{verdict}"

    def _rest(self) -> str:
        more = [f"{name} {_number(value)}" for name, value in self.more.items()]
        return "; ".join([*more, *([self.note] if self.note else [])])


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [HEADER, tuple("---" for _ in HEADER), *(row.cells for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_json(about: dict[str, object], rows: Iterable[Row]) -> str:
    """Numbers that are not finite, which a broken kernel gives, are strings: JSON has none."""
    findings = [asdict(row) | {"met": row.met} for row in rows]
    return json.dumps(_named({"about": about, "rows": findings}), indent=2, allow_nan=False) + "\n"


def _named(found: object) -> object:
    match found:
        case dict():
            return {key: _named(value) for key, value in found.items()}
        case list():
            return [_named(value) for value in found]
        case float() if not math.isfinite(found):
            return str(found)
    return found


def save(file: Path, about: dict[str, object], rows: Iterable[Row]) -> None:
    """Replace `file` as a whole: whoever is ended meanwhile leaves the previous one."""
    draft = file.with_name(file.name + ".part")
    draft.write_text(as_json(about, rows))
    draft.replace(file)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
