"""Hash chain of full KV blocks, the key of the prefix cache.

A block's hash covers its tokens and, through the parent's hash, everything before it. The salt
keeps tenants, model revisions and adapters apart. BLAKE2b makes a collision between tenants
infeasible and the value independent of PYTHONHASHSEED.
"""

from functools import lru_cache
from hashlib import blake2b

import numpy as np

from engine.core.plan import IntArray

DIGEST_BYTES = 16


@lru_cache(maxsize=1024)
def salt_of(*parts: str) -> bytes:
    """The root of a chain, from parts such as tenant, model revision and adapter."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


def next_hash(parent: bytes, tokens: IntArray) -> bytes:
    """Hash of a full block holding `tokens` (int32) after the block hashed as `parent`."""
    return blake2b(tokens.tobytes(), key=parent, digest_size=DIGEST_BYTES).digest()


def block_hashes(tokens: IntArray, salt: bytes, block_size: int) -> tuple[bytes, ...]:
    """Hashes of the full blocks of `tokens`; a partial last block has none."""
    hashes = []
    parent = salt
    tokens = np.ascontiguousarray(tokens, dtype=np.int32)
    for end in range(block_size, len(tokens) + 1, block_size):
        parent = next_hash(parent, tokens[end - block_size : end])
        hashes.append(parent)
    return tuple(hashes)
