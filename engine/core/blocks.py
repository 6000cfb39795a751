"""The ledger of KV blocks: who holds which, which are cached, which may be taken.

A block is *free* (no content of value), *cached* (no holder, but its content can be found by
hash), or *held*: owned by sequences, fenced by a step still in flight, or in transfer between
device and host. free + cached + held = total, always.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from enum import StrEnum


class Hold(StrEnum):
    """Why a block without an owner may not be reused yet."""

    FENCE = "fence"  # a step in flight still writes or reads it
    TRANSFER = "transfer"  # its content is being moved


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free or cached; a fault of the caller's accounting."""


class BlockLedger:
    """Counts references to `num_blocks` KV blocks of `block_size` tokens each.

    The prefix cache is least-recently-used over blocks without holders. Blocks of a chain are
    released last to first, so that the end of a prefix is forgotten before its beginning.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._refs = [0] * num_blocks
        self._hash: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._holds: deque[tuple[int, Hold, tuple[int, ...]]] = deque()  # by step, ascending

    def __repr__(self) -> str:
        return (
            f"<BlockLedger {self.free}/{self.num_blocks} free, {self.cached} cached, "
            f"{self.held} held>"
        )

    @property
    def free(self) -> int:
        """Blocks without content of value."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks without a holder whose content can still be found."""
        return len(self._cached)

    @property
    def held(self) -> int:
        """Blocks owned, fenced or in transfer."""
        return self.num_blocks - self.free - self.cached

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return len(self._free) + len(self._cached)

    def references(self, block: int) -> int:
        """Holders of `block`."""
        return self._refs[block]

    def blocks_for(self, tokens: int) -> int:
        """Blocks needed to store `tokens` tokens."""
        return -(-tokens // self.block_size)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks that hold the longest known prefix of a hash chain. Changes nothing."""
        found = []
        for key in hashes:
            block = self._by_hash.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def count_cached(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` sharing would take out of the available ones."""
        return sum(1 for block in blocks if self._refs[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each of `blocks`, cached ones included."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one holder each; cached content is forgotten where needed."""
        if count > self.available:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.available} available")
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                self._forget(block)
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def seal(self, block: int, key: bytes) -> None:
        """Publish a full, computed block under its hash; the first block of a hash keeps it."""
        if self._hash[block] is None and key not in self._by_hash:
            self._hash[block] = key
            self._by_hash[key] = block

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one holder of each of `blocks`, given in chain order."""
        for block in reversed(blocks):
            refs = self._refs[block] - 1
            if refs < 0:
                raise ValueError(f"block {block} has no holder to release")
            self._refs[block] = refs
            if refs == 0:
                if self._hash[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def hold(self, blocks: Sequence[int], until_step: int, kind: Hold) -> None:
        """Keep one existing holder of each of `blocks` until step `until_step` has retired."""
        if self._holds and self._holds[-1][0] > until_step:
            raise ValueError(f"holds must be added in step order, not {until_step}")
        if blocks:
            self._holds.append((until_step, kind, tuple(blocks)))

    def retire(self, step: int) -> None:
        """Step `step` is done: blocks held for it or for earlier ones are released."""
        while self._holds and self._holds[0][0] <= step:
            self.release(self._holds.popleft()[2])

    def on_hold(self, kind: Hold) -> list[int]:
        """Blocks under holds of `kind`, one entry a hold."""
        return [block for _, k, blocks in self._holds if k is kind for block in blocks]

    def pending_release(self) -> int:
        """Blocks that become available once all steps in flight have retired."""
        return sum(1 for _, _, bs in self._holds for b in bs if self._refs[b] == 1)

    def unpublish(self, blocks: Iterable[int]) -> None:
        """Let the content of `blocks`, which have holders, be found by hash no more."""
        for block in blocks:
            self._forget(block)

    def forget_all(self) -> None:
        """The device lost its memory: no content can be found by hash any more."""
        for block in range(self.num_blocks):
            self._hash[block] = None
        self._by_hash.clear()
        self._free.extend(self._cached)
        self._cached.clear()

    def _forget(self, block: int) -> None:
        key = self._hash[block]
        if key is not None:
            del self._by_hash[key]
            self._hash[block] = None

    def verify(self, owned: Iterable[int]) -> None:
        """Raise ValueError unless holders are exactly `owned` (one entry a holder) plus holds."""
        expected = [0] * self.num_blocks
        for block in owned:
            expected[block] += 1
        for _, _, blocks in self._holds:
            for block in blocks:
                expected[block] += 1
        if expected != self._refs:
            wrong = [b for b in range(self.num_blocks) if expected[b] != self._refs[b]]
            raise ValueError(f"blocks {wrong} have other holders than the ledger says")
        idle = {*self._free, *self._cached}
        if (
            any(map(self._refs.__getitem__, idle))
            or len(idle) != self._refs.count(0)
            or len(idle) != len(self._free) + len(self._cached)
        ):
            raise ValueError("free and cached blocks are not exactly those without a holder")
        published = self.num_blocks - self._hash.count(None)
        if published != len(self._by_hash) or any(
            self._hash[block] != key for key, block in self._by_hash.items()
        ):
            raise ValueError("a block is published under a hash that finds another block")
