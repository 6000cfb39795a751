"""Who is calling and whether they may: keys, before anything else is read."""

from starlette.datastructures import Headers

from gateway.errors import ApiError, Reason
from tenants.auth import Authenticator, AuthError
from tenants.connection import StoreUnavailable
from tenants.model import Principal


async def authenticate(headers: Headers, authenticator: Authenticator, scope: str) -> Principal:
    """The caller, who holds `scope`. Raises ApiError 401, 403, or 503 when the store is away."""
    try:
        principal = await authenticator.authenticate(presented_key(headers))
    except AuthError as error:
        raise ApiError(
            Reason.BAD_KEY,
            f"{str(error)[0].upper()}{str(error)[1:]}.",
            facts={"reason": str(error.reason)},
            headers={"www-authenticate": "Bearer"},
        ) from None
    except StoreUnavailable:
        raise ApiError(Reason.STORE_UNAVAILABLE) from None
    if not principal.key.allows(scope):
        raise ApiError(Reason.SCOPE, f"The API key lacks the scope {scope!r}.")
    return principal


def presented_key(headers: Headers) -> str | None:
    """From `authorization: Bearer`, else from `x-api-key`, as Anthropic's clients send it."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("x-api-key")
