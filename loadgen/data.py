"""The folder of public traces, which are read where they lie and not shipped."""

from dataclasses import dataclass
from pathlib import Path

from loadgen.tables import ScenarioError

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where traces and their quantiles are."""

    path: Path = DEFAULT_DATA

    def find(self, name: str) -> Path:
        """The file `name`; raises ScenarioError where there is none."""
        path = self.path / name
        if not path.is_file():
            raise ScenarioError(f"there is no {name} in {self.path}; say where with --data")
        return path

    def read(self, name: str) -> str:
        """The text of the file `name`."""
        return self.find(name).read_text()
