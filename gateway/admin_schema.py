"""The bodies of the admin API. What a tenant's settings may be is said by `tenants.settings`."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, create_model

from gateway.wire import Wire
from tenants.model import INFERENCE, SCOPES, TENANT_PATTERN
from tenants.settings import SETTINGS, Kind, Setting

MAX_MODELS = 100
MAX_OVERLAP = 90 * 86_400  # seconds

_TYPES: dict[Kind, Any] = {
    Kind.FLAG: bool,
    Kind.WEIGHT: float,
    Kind.COUNT: int,
    Kind.PRIORITY: int,
    Kind.MONEY: float,
}


def _field(setting: Setting) -> Any:
    kind = Literal[setting.values] if setting.values else _TYPES[setting.kind]
    return (kind if setting.required else kind | None, Field(None, description=setting.about))


# Checked where all tenants are.
TenantId = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^{TENANT_PATTERN}$"})]
TenantSettings: type[Wire] = create_model(
    "TenantSettings",
    __base__=Wire,
    __doc__="Settings to change; null leaves one to the server or lifts a limit.",
    **{name: _field(setting) for name, setting in SETTINGS.items()},
)
NewTenant: type[Wire] = create_model(
    "NewTenant",
    __base__=TenantSettings,
    __doc__="A tenant; settings left out are the server's, or no limit.",
    id=(
        TenantId,
        Field(description="1 to 63 of a-z, 0-9, '.', '_', '-'; the first a letter or digit."),
    ),
)


class NewKey(Wire):
    """The rights of a key."""

    scopes: list[Literal[tuple(sorted(SCOPES))]] = Field(  # type: ignore[valid-type]
        [INFERENCE], description="`inference` may do everything a tenant may, `read` only look."
    )
    models: Annotated[list[str], Field(max_length=MAX_MODELS)] = Field(
        [], description="Models it may use; all if empty."
    )
    expires: int | None = Field(None, description="Its end, in Unix seconds; null is never.")


class KeyChanges(NewKey):
    """What to change of a key; what is left out stays."""

    disabled: bool = Field(False, description="Whether it is refused for now.")


class Rotation(Wire):
    overlap: Annotated[int, Field(ge=0, le=MAX_OVERLAP)] = Field(
        3600, description="Seconds that the old key goes on working."
    )
