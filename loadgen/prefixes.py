"""Block hashes of simulated prompts, so that the prefix cache finds what they have in common."""

from hashlib import blake2b

from loadgen.workload import Request

DIGEST_BYTES = 16


def prompt_hashes(request: Request, sequence: int, block_size: int) -> tuple[bytes, ...]:
    """One for each full block of the prompt.

    Those within the shared beginning are the same for all that begin so; simulated prompts have no
    content that could be hashed, so the rest is told apart by the sequence. A prompt that shares
    nothing needs no hashes.
    """
    common = request.shared // block_size
    if not common:
        return ()
    beginning = f"{request.client}/{request.prefix}"
    return tuple(
        _digest(beginning if block < common else f"#{sequence}", block)
        for block in range(request.prompt // block_size)
    )


def _digest(whose: str, block: int) -> bytes:
    return blake2b(f"{whose}:{block}".encode(), digest_size=DIGEST_BYTES).digest()
