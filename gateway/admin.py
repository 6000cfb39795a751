"""`/admin/...`: tenants and keys over HTTP, as `watermaster tenants` and `keys` have them.

Everything is done by the store's own operations. A change counts at once on every replica.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.admin_schema import KeyChanges, NewKey, NewTenant, Rotation, TenantSettings
from gateway.auth import presented_key
from gateway.body import read_body
from gateway.errors import ApiError, Reason
from gateway.state import Gateway
from gateway.usage import report_of_all
from gateway.wire import Wire, json_object, validated
from tenants import keys
from tenants.model import ApiKey, InvalidRecord, Tenant
from tenants.reading import Listing
from tenants.store import (
    AlreadyExists,
    IssuedKey,
    KeyNotActive,
    NotFound,
    RecordDamaged,
    Store,
    StoreUnavailable,
)

BODY_BYTES = 16 << 10
PAGE = 100  # tenants, keys or changes in an answer, unless fewer are asked for

Handler = Callable[[Store, Request], Awaitable[Response]]
WireT = TypeVar("WireT", bound=Wire)
T = TypeVar("T")


class Admin:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        tenant, key = "/admin/tenants/{tenant}", "/admin/keys/{key}"
        return [
            self._route("/admin/tenants", "GET", self.list_tenants),
            self._route("/admin/tenants", "POST", self.create_tenant),
            self._route(tenant, "GET", self.get_tenant),
            self._route(tenant, "PATCH", self.update_tenant),
            self._route(f"{tenant}/keys", "GET", self.list_keys),
            self._route(f"{tenant}/keys", "POST", self.create_key),
            self._route(key, "GET", self.get_key),
            self._route(key, "PATCH", self.update_key),
            self._route(f"{key}/rotate", "POST", self.rotate_key),
            self._route(f"{key}/revoke", "POST", self.revoke_key),
            self._route("/admin/usage", "GET", self.usage),
            self._route("/admin/audit", "GET", self.audit),
        ]

    async def list_tenants(self, store: Store, request: Request) -> JSONResponse:
        """A page of tenants, by id; `next` is the `after` of the following one."""
        after, most = _page(request)
        return _listing(await store.list_tenants(after, most + 1), most, "id", asdict)

    async def create_tenant(self, store: Store, request: Request) -> JSONResponse:
        """Add a tenant."""
        values = await self._body(NewTenant, request)
        given = {name: value for name, value in values.items() if value is not None}
        return JSONResponse(asdict(await store.create_tenant(Tenant(**given))), 201)

    async def get_tenant(self, store: Store, request: Request) -> JSONResponse:
        """One tenant."""
        return JSONResponse(asdict(await store.get_tenant(request.path_params["tenant"])))

    async def update_tenant(self, store: Store, request: Request) -> JSONResponse:
        """Change the settings that are named."""
        changes = await self._body(TenantSettings, request)
        changed = await store.update_tenant(request.path_params["tenant"], **changes)
        return JSONResponse(asdict(changed))

    async def list_keys(self, store: Store, request: Request) -> JSONResponse:
        """A page of a tenant's keys, by public id, those that ended lately included."""
        after, most = _page(request)
        found = await store.list_keys(request.path_params["tenant"], after, most + 1)
        return _listing(found, most, "public_id", ApiKey.describe)

    async def create_key(self, store: Store, request: Request) -> JSONResponse:
        """Issue a key. `key` of the answer is told this once."""
        rights = await self._body(NewKey, request)
        return _issued(await store.create_key(request.path_params["tenant"], **rights))

    async def get_key(self, store: Store, request: Request) -> JSONResponse:
        """One key."""
        return JSONResponse((await store.get_key(request.path_params["key"])).describe())

    async def update_key(self, store: Store, request: Request) -> JSONResponse:
        """Change the rights of a key, disable or enable it."""
        changes = await self._body(KeyChanges, request)
        key = await store.update_key(request.path_params["key"], **changes)
        return JSONResponse(key.describe())

    async def rotate_key(self, store: Store, request: Request) -> JSONResponse:
        """Issue a key with the same rights; the old one works a while longer."""
        given = Rotation(**await self._body(Rotation, request))
        return _issued(await store.rotate_key(request.path_params["key"], given.overlap))

    async def revoke_key(self, store: Store, request: Request) -> JSONResponse:
        """End a key for good."""
        key = await store.revoke_key(request.path_params["key"])
        return JSONResponse(key.describe())

    async def audit(self, store: Store, request: Request) -> JSONResponse:
        """A page of what was changed, the newest first, and by whom."""
        most = _page(request)[1]
        found = await store.audit.read(most + 1, request.query_params.get("before", ""))
        following = found[most - 1].id if len(found) > most else None
        changes = [change.describe() for change in found[:most]]
        return JSONResponse({"object": "list", "data": changes, "next": following})

    async def usage(self, _: Store, request: Request) -> Response:
        """What all tenants used."""
        return await report_of_all(self._gateway, request)

    def _route(self, path: str, method: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            with _refusals():
                store = self._gateway.access.store
                key = await _authenticate(store, request)
                return await handler(store.acting_as(f"admin key {key}"), request)

        endpoint.__doc__ = handler.__doc__
        return Route(path, endpoint, methods=[method])

    async def _body(self, model: type[WireT], request: Request) -> dict[str, Any]:
        """The members of the body that were given, checked; an absent body names none."""
        seconds = self._gateway.limits.body_timeout
        body = await read_body(request.headers, request.receive, BODY_BYTES, seconds)
        value = validated(model, json_object(body or b"{}"))
        return value.model_dump(include=value.model_fields_set)


async def _authenticate(store: Store, request: Request) -> str:
    """The public id of the admin key. Raises ApiError 401."""
    raw = presented_key(request.headers)
    presented = keys.parse(raw or "")
    if not raw or not presented or not await store.admin_key.is_opened_by(raw):
        raise ApiError(
            Reason.BAD_KEY,
            "This needs the admin key; `watermaster admin key` issues it.",
            facts={"reason": "unknown" if raw else "missing"},
            headers={"www-authenticate": "Bearer"},
        )
    return presented.public_id


@contextmanager
def _refusals() -> Iterator[None]:
    """The store's refusals as answers."""
    try:
        yield
    except NotFound as error:
        raise ApiError(Reason.NOT_FOUND, _sentence(error)) from None
    except AlreadyExists as error:
        raise ApiError(Reason.ALREADY_EXISTS, _sentence(error)) from None
    except KeyNotActive as error:
        raise ApiError(Reason.KEY_NOT_ACTIVE, _sentence(error)) from None
    except InvalidRecord as error:
        raise ApiError(Reason.INVALID_VALUE, _naming(error), param=error.field) from None
    except RecordDamaged as error:
        raise ApiError(Reason.RECORD_DAMAGED, _sentence(error)) from None
    except StoreUnavailable:
        raise ApiError(
            Reason.STORE_UNAVAILABLE, "The store does not answer; retry after the time given."
        ) from None


def _sentence(error: Exception) -> str:
    text = str(error)[:300]  # it may quote what was asked for
    return f"{text[0].upper()}{text[1:]}."


def _naming(error: InvalidRecord) -> str:
    """A sentence that leaves the name of the field as it is sent: no capital."""
    text, name = _sentence(error), error.field
    return f"{name!r}{text[len(name) :]}" if str(error).startswith(f"{name} ") else text


def _listing(
    listing: Listing[T], most: int, name: str, describe: Callable[[T], dict[str, object]]
) -> JSONResponse:
    """A page of it, which has one more if there is another; `next` begins that."""
    ids = sorted([*listing.found, *listing.damaged])
    page = ids[:most]
    found, damaged = listing.found, listing.damaged
    return JSONResponse(
        {
            "object": "list",
            "data": [describe(found[one]) for one in page if one in found],
            "damaged": [{name: one, "message": damaged[one]} for one in page if one in damaged],
            "next": page[-1] if len(ids) > most else None,
        }
    )


def _page(request: Request) -> tuple[str, int]:
    """Behind what the page begins, and its size. Raises ApiError 400."""
    text = request.query_params.get("limit", str(PAGE))
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    if not 1 <= size <= PAGE:
        raise ApiError(
            Reason.INVALID_VALUE, f"'limit' must be a number from 1 to {PAGE}.", param="limit"
        )
    return request.query_params.get("after", ""), size


def _issued(issued: IssuedKey) -> JSONResponse:
    return JSONResponse({"key": issued.raw, **issued.key.describe()}, 201)
