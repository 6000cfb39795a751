"""Engines by model id: one engine a model, each with its own kernel and fairness counters."""

from collections.abc import Iterator

from engine.host.engine import Engine


class EngineRegistry:
    """The models this process serves."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}

    def add(self, engine: Engine) -> None:
        """Register `engine` under its name; raises ValueError if the name is taken."""
        if engine.name in self._engines:
            raise ValueError(f"model {engine.name!r} is served already")
        self._engines[engine.name] = engine

    def get(self, name: str) -> Engine | None:
        """The engine of a model, or None."""
        return self._engines.get(name)

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines.values())

    def __len__(self) -> int:
        return len(self._engines)
