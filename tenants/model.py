"""Tenants, their keys, and who a request speaks for. Plain data: no store, no network."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from telemetry.secrets import holds_key
from tenants.choices import AUTO
from tenants.settings import SETTINGS, InvalidRecord, Kind, Setting

__all__ = ["INFERENCE", "READ", "SCOPES", "ApiKey", "InvalidRecord", "Principal", "Tenant"]

INFERENCE = "inference"  # whatever a tenant may do
READ = "read"  # look, and spend nothing
SCOPES = frozenset({INFERENCE, READ})

TENANT_PATTERN = "[a-z0-9][a-z0-9._-]{0,62}"
_TENANT_ID = re.compile(TENANT_PATTERN)
_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")
_RESERVED = frozenset({"other"})  # the metrics' label for tenants beyond their cap
_EXPIRES = Setting("expires", Kind.COUNT, "The end of a key, in Unix seconds.")
_DISABLED = Setting("disabled", Kind.FLAG, "Whether a key is refused for now.", required=True)


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who shares the engine; `tenants.settings` says what each setting means.

    What is None is left to the server's own setting, a limit or budget unlimited. `created` is
    Unix seconds, set by the store.
    """

    id: str
    weight: float = 1.0
    priority: int | None = None
    disabled: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrency: int | None = None
    tokens_per_hour: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    money_per_hour: float | None = None
    money_per_day: float | None = None
    money_per_month: float | None = None
    queue_requests: int | None = None
    queue_tokens: int | None = None
    default_timeout_ms: int | None = None
    max_timeout_ms: int | None = None
    default_max_tokens: int | None = None
    max_max_tokens: int | None = None
    stream_header_delay_ms: int | None = None
    tpot_target_ms: int | None = None
    admission: str | None = None
    on_infeasible: str | None = None
    on_expiry: str | None = None
    domain: str | None = None
    created: int = 0

    def __post_init__(self) -> None:
        _check_tenant_id(self.id)
        for name, setting in SETTINGS.items():
            setting.check(getattr(self, name))
        _check_ordered(self, "default_timeout_ms", "max_timeout_ms")
        _check_ordered(self, "default_max_tokens", "max_max_tokens")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as the store knows it; the secret itself is nowhere.

    `digest` is the SHA-256 of the secret in hex, and not shown. An empty `models` allows every
    model. A disabled key can be enabled again, a revoked one cannot. `expires` and `created` are
    Unix seconds.
    """

    public_id: str
    tenant: str
    digest: str = field(repr=False)
    scopes: frozenset[str] = frozenset({INFERENCE})
    models: frozenset[str] = frozenset()
    expires: int | None = None
    disabled: bool = False
    revoked: bool = False
    created: int = 0

    def __post_init__(self) -> None:
        unknown = sorted(self.scopes - SCOPES)
        if unknown:
            known = ", ".join(sorted(SCOPES))
            raise InvalidRecord("scopes", f"unknown scope {unknown[0]!r}; the scopes are {known}")
        if not self.scopes:
            raise InvalidRecord("scopes", "a key needs at least one scope")
        for model in sorted(self.models):
            if not _MODEL_ID.fullmatch(model) or holds_key(model):
                raise InvalidRecord("models", f"{model!r} is not a model id")
        _EXPIRES.check(self.expires)
        _DISABLED.check(self.disabled)

    def expired(self, now: int) -> bool:
        """Whether the key has expired at `now` (Unix seconds)."""
        return self.expires is not None and now >= self.expires

    def state(self, now: int) -> str:
        """In one word, at `now` (Unix seconds)."""
        if self.revoked:
            return "revoked"
        if self.expired(now):
            return "expired"
        return "disabled" if self.disabled else "active"

    def allows(self, scope: str) -> bool:
        return scope in self.scopes or INFERENCE in self.scopes

    def allows_model(self, model: str) -> bool:
        return not self.models or model in self.models

    def describe(self) -> dict[str, object]:
        """What may be shown to people and written as JSON: everything but the digest."""
        return {
            "public_id": self.public_id,
            "tenant": self.tenant,
            "scopes": sorted(self.scopes),
            "models": sorted(self.models),
            "expires": self.expires,
            "disabled": self.disabled,
            "revoked": self.revoked,
            "created": self.created,
        }


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, as read at an instant of the store's clock, in Unix nanoseconds."""

    tenant: Tenant
    key: ApiKey
    read_at: int = field(compare=False)  # what a key's end is held against


def _check_tenant_id(tenant: str) -> None:
    if not isinstance(tenant, str) or not _TENANT_ID.fullmatch(tenant):
        raise InvalidRecord(
            "id",
            f"{tenant!r} is not a tenant id: use 1 to 63 of a-z, 0-9, '.', '_' and '-', "
            "starting with a letter or a digit",
        )
    if tenant in _RESERVED:
        raise InvalidRecord("id", f"the tenant id {tenant!r} is reserved")


def models_of(names: Iterable[str]) -> frozenset[str]:
    """What a key is to allow. Its calls may say `auto` in any case, and `auto` alone allows none.

    Raises InvalidRecord.
    """
    models = frozenset(names)
    if AUTO in models:
        raise InvalidRecord("models", f"{AUTO!r} is no model: name those that it may choose from")
    return models


# What a key has sets of, and how one that is asked for is read.
KEY_SETS: dict[str, Callable[..., frozenset[str]]] = {"scopes": frozenset, "models": models_of}


def _check_ordered(tenant: Tenant, default: str, ceiling: str) -> None:
    low, high = getattr(tenant, default), getattr(tenant, ceiling)
    if low is not None and high is not None and low > high:
        raise InvalidRecord(default, f"{default} ({low}) is above {ceiling} ({high})")
