"""The ledger of host blocks: where swapped-out KV waits."""

from collections.abc import Sequence


class HostPool:
    """Counts `size` host blocks. Blocks given back can be taken again only after `settle`: until

    the plan that reads them has been launched, another copy must not overwrite them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))
        self._returned: list[int] = []

    @property
    def free(self) -> int:
        """Blocks that `take` can hand out now."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that hold somebody's KV."""
        return self.size - len(self._free) - len(self._returned)

    def take(self, count: int) -> list[int]:
        """`count` free blocks. Raises ValueError if there are fewer."""
        if count > len(self._free):
            raise ValueError(f"{count} host blocks asked for, {len(self._free)} free")
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: Sequence[int]) -> None:
        """The content of `blocks` is no longer needed once the next plan is launched."""
        self._returned.extend(blocks)

    def settle(self) -> None:
        """A plan was launched: what was given back before it may be taken again."""
        self._free.extend(self._returned)
        self._returned.clear()
