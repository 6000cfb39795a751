"""What the sections of the configuration have in common."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _at_home(path: Path) -> Path:
    """With the home folder in place of a `~` that it begins with."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"begins with {path.parts[0]}, which is no home folder here") from None


Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
# TOML knows no paths; a string is meant.
File = Annotated[Path, Field(strict=False), AfterValidator(_at_home)]
Folder = File


class Section(BaseModel):
    """Keys of one table of the file; the docstring below each says what it means."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )
