"""The form of API keys: `wm-<public id>-<secret>`.

The public id (48 random bits) finds the record and is safe to log. The secret (256 random bits)
is never stored, only its SHA-256; it is too long to guess, so no slow hash is needed.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

_SECRET_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_SECRET_LENGTH = 43  # 62 ** 43 > 2 ** 256
PUBLIC_ID_PATTERN = "[0-9a-f]{12}"
_FORM = re.compile(f"wm-({PUBLIC_ID_PATTERN})-([A-Za-z0-9]{{43}})")


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """What a caller presented: the public id, and the digest of the secret in hex."""

    public_id: str
    digest: str = field(repr=False)


def new_key() -> tuple[str, str, str]:
    """Draw a key; returns (the raw key, its public id, the digest to store)."""
    public_id = secrets.token_hex(6)
    secret = "".join(secrets.choice(_SECRET_ALPHABET) for _ in range(_SECRET_LENGTH))
    return f"wm-{public_id}-{secret}", public_id, _digest(secret)


def parse(raw: str) -> PresentedKey | None:
    """Take a presented key apart; None when it does not have the form of a key."""
    form = _FORM.fullmatch(raw)
    return PresentedKey(form[1], _digest(form[2])) if form else None


def matches(presented: PresentedKey, digest: str) -> bool:
    """Whether the presented secret is the one behind `digest`, in constant time."""
    return hmac.compare_digest(presented.digest, digest)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
