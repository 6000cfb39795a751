"""What the sections of the configuration have in common."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
File = Annotated[Path, Field(strict=False)]  # TOML knows no paths; a string is meant
Folder = File


class Section(BaseModel):
    """Keys of one table of the file; the docstring below each says what it means."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )
