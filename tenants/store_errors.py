"""What the store refuses, and the scripts' words for it."""

from tenants.connection import StoreError, StoreUnavailable
from tenants.model import ApiKey, InvalidRecord


class NotFound(StoreError):  # noqa: N818 - reads better without
    """There is no such tenant or key."""


class AlreadyExists(StoreError):  # noqa: N818 - reads better without
    """The tenant id is taken."""


class KeyNotActive(StoreError):  # noqa: N818 - reads better without
    """A revoked or expired key cannot be changed or rotated, a disabled one not rotated."""


class SchemaMismatch(StoreError):  # noqa: N818 - reads better without
    """The store was written by a version of Watermaster that this one does not understand."""


def created_of(answer: str) -> int:
    """When a script says that it created a key; in Unix seconds."""
    if answer == "EXISTS":
        # 48 random bits met one of a million keys: four times in 10^9.
        raise StoreUnavailable("the new key's public id is taken; try again")
    return int(answer)


def check_answer(answer: str, key: ApiKey) -> None:
    """Raise what a script's refusal to write `key` stands for."""
    if answer == "NO_TENANT":
        raise no_tenant(key.tenant)
    if answer == "NO_KEY":
        raise no_key(key.public_id)
    if answer == "DEAD":
        raise KeyNotActive(f"the key {key.public_id} is not active any more; create a new one")
    if answer == "PAST":
        raise InvalidRecord("expires", f"expires ({key.expires}) is in the past")


def no_tenant(tenant_id: str) -> NotFound:
    return NotFound(f"there is no tenant {tenant_id!r}")


def no_key(public_id: str) -> NotFound:
    return NotFound(f"there is no key {public_id!r}")
