"""The keys of the usage ledger. See `gateway.config`."""

from typing import Annotated

from pydantic import Field

from gateway.config_section import Count, Seconds, Section


class UsageSettings(Section):
    """What is written down of who used how much (see `docs/usage.md`)."""

    flush_interval: Seconds = 1.0
    """Seconds between bringing the journal into the store."""

    journal_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    """Bytes of the journal that may wait for the store on this machine's disk; beyond them new
    calls get 503."""

    retention_days: Annotated[Count, Field(le=3660)] = 93
    """Days that an hour's usage is kept in the store."""
