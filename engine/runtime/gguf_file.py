"""A GGUF file, and what is told of one that is damaged."""

from pathlib import Path
from typing import Any


class GgufError(ValueError):
    """The file cannot be read; the message names it and says why."""


class GgufFile:
    """Metadata and tensors of the file at `path`. Raises GgufError.

    The reader believes whatever the file says of its own sizes: where that is wrong, as in one that
    was cut off, it may fail in any way.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader  # GPU hosts that load HF folders only lack it

        try:
            self._reader = GGUFReader(path)
        except OSError as error:
            raise GgufError(f"cannot read {path}: {error.strerror or error}") from error
        except Exception as error:
            raise GgufError(f"{path} is not a readable GGUF file: {error}") from error
        self.path = path
        self.tensors: dict[str, Any] = {tensor.name: tensor for tensor in self._reader.tensors}

    def field(self, key: str) -> Any:
        """What the metadata say under `key`, None if they do not."""
        field = self._reader.get_field(key)
        if field is None:
            return None
        try:
            return field.contents()
        except Exception as error:
            raise GgufError(f"{self.path}: the metadata key '{key}' is damaged: {error}") from error
