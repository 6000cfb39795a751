"""Which other processes of this folder are dead, with all that they wrote down in the store.

What calls of a dead process had reserved of a budget stays spent until it is known what they used.
That is once its journals, which it leaves in the folder, have come into the store to the last byte.
"""

from collections.abc import Collection
from pathlib import Path

from tenants.replica import Replica, dead_in


class Departed:
    """`names` are dead and have no journal left. `former`: this process' predecessors have none."""

    def __init__(self, replica: Replica, places: Path | None = None) -> None:
        self.names: tuple[str, ...] = ()
        self.former = False
        self.replica = replica
        self._places = places

    def look(self) -> list[str]:
        """Those that are dead now, before their journals are brought in. Blocking."""
        return dead_in(self._places) if self._places else []

    def settle(self, dead: Collection[str], waiting: Collection[str]) -> None:
        """All journals that nobody writes have been brought in, but for those of `waiting`."""
        own = self.replica
        self.names = tuple(sorted(name for name in dead if name not in waiting))
        self.former = not any(name.startswith(own.place) for name in waiting if name != own.name)
