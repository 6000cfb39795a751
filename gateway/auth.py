"""Who is calling and whether they may: keys, before anything else is read."""

from collections.abc import Mapping

from gateway.call import Call
from gateway.errors import ApiError, Reason
from gateway.state import Gateway
from tenants.auth import Authenticator, AuthError
from tenants.connection import StoreUnavailable
from tenants.model import Principal


async def admit(call: Call, gateway: Gateway, scope: str) -> Principal:
    """The caller, who holds `scope`; whatever is answered from here on tells how its limits stand.

    Raises ApiError 401, 403, or 503 when the store is away.
    """
    principal = await _identify(call.headers, gateway.authenticator)
    tenant = principal.tenant
    await gateway.quota.meet(tenant)
    call.told.append(lambda: gateway.quota.headers(tenant, call.dialect))
    return _holding(principal, scope)


async def authenticate(
    headers: Mapping[str, str], authenticator: Authenticator, scope: str
) -> Principal:
    """The same for a call that was admitted before, to see that its key still holds."""
    return _holding(await _identify(headers, authenticator), scope)


async def _identify(headers: Mapping[str, str], authenticator: Authenticator) -> Principal:
    try:
        return await authenticator.authenticate(presented_key(headers))
    except AuthError as error:
        raise ApiError(
            Reason.BAD_KEY,
            f"{str(error)[0].upper()}{str(error)[1:]}.",
            facts={"reason": str(error.reason)},
            headers={"www-authenticate": "Bearer"},
        ) from None
    except StoreUnavailable:
        raise ApiError(Reason.STORE_UNAVAILABLE) from None


def _holding(principal: Principal, scope: str) -> Principal:
    if not principal.key.allows(scope):
        raise ApiError(Reason.SCOPE, f"The API key lacks the scope {scope!r}.")
    return principal


def presented_key(headers: Mapping[str, str]) -> str | None:
    """From `authorization: Bearer`, else from `x-api-key`, as Anthropic's clients send it."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("x-api-key")
