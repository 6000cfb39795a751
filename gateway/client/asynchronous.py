"""The client for asynchronous code."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import quote

import httpx

from gateway.client.budgets import budget_of
from gateway.client.errors import RefusedError, UnreachableError
from gateway.client.objects import error_object, read_object
from gateway.client.race import Won, first_acceptable
from gateway.client.retries import DEFAULT_POLICY, GivenUp, Retries, RetryPolicy
from gateway.client.scope import Scope, current, new_id, scope, sendable
from gateway.client.stream import Stream
from gateway.client.until import until

Answer = dict[str, Any]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BACKPRESSURE = "/v1/backpressure"
# How long a cancellation may take, all tries together.
CANCEL_WITHIN = 10.0


def accept_all(_: Answer) -> bool:
    return True


# A response, and what it says unless that is yet to be read from a stream.
Received = tuple[httpx.Response, Answer]


class AsyncClient:
    """Calls a server at `url` with a key. Bodies and answers are the API's own JSON.

    `within` ends a call so many seconds from now, and never later than the scope around it. Every
    call may raise RefusedError, UnreachableError and DeadlineError. A client belongs to the event
    loop of its first call; on another one its calls raise RuntimeError.
    """

    def __init__(self, url: str, key: str, policy: RetryPolicy = DEFAULT_POLICY) -> None:
        _check(url, key)
        self._policy = policy
        self._budget = budget_of(url, key, policy)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._chance = random.Random()
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {key}"},
            # How long an answer may take is the deadline's affair; connections are the server's.
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=None),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def chat(self, *, within: float | None = None, **body: Any) -> Answer:
        """A whole answer of `/v1/chat/completions`."""
        return await self._whole(CHAT, body, within)

    async def completions(self, *, within: float | None = None, **body: Any) -> Answer:
        """A whole answer of `/v1/completions`."""
        return await self._whole(COMPLETIONS, body, within)

    async def stream(self, *, within: float | None = None, **body: Any) -> Stream:
        """A chat answer as it comes: what failed before its first token is sent again, as ever."""
        with scope(within=within) as own:
            response, _ = await self._generate(CHAT, {**body, "stream": True}, own)
        return Stream(response, own.end)

    async def race(
        self,
        requests: Sequence[Mapping[str, Any]],
        accept: Callable[[Answer], bool] = accept_all,
        *,
        within: float | None = None,
    ) -> Won[Answer]:
        """The first acceptable answer to one of `requests`, bodies of chat calls; see `Won`.

        All are sent at once, as attempts of one run. A race that is a task of its own ends with the
        commit of the winner; inside a task, which goes on, its losers alone are cancelled. Either
        way the server stops to compute them. Raises NoneAcceptedError.
        """
        names = [new_id("attempt") for _ in requests]
        inside = current() is not None

        async def attempt(name: str, body: Mapping[str, Any]) -> Answer:
            with scope(attempt=name):
                return await self.chat(**body)

        with scope(run=new_id("race"), within=within) as own:

            async def commit(winner: int) -> None:
                if not inside:
                    await self.commit(own.task, names[winner])
                    return
                losers = names[:winner] + names[winner + 1 :]
                await asyncio.gather(*(self.cancel(own.task, own.run, name) for name in losers))

            pairs = zip(names, requests, strict=True)
            attempts = [partial(attempt, name, body) for name, body in pairs]
            return await first_acceptable(attempts, accept, commit)

    async def backpressure(self) -> Answer:
        """How the tenant stands with each model: `docs/backpressure.md` says what is in it."""
        with scope() as own:
            _, answer = await self._exchange("GET", BACKPRESSURE, None, own)
        return answer

    async def cancel(self, task: str, run: str | None = None, attempt: str | None = None) -> None:
        """Stop all work under a task, one of its runs, or one attempt of a run, for good."""
        if attempt is not None and run is None:  # which would stop all of the task
            raise ValueError("an attempt is cancelled as part of its run, which is not named")
        path = f"/v1/tasks/{_segment(task)}"
        if run is not None:
            path += f"/runs/{_segment(run)}"
            if attempt is not None:
                path += f"/attempts/{_segment(attempt)}"
        await self._control("DELETE", path, None)

    async def commit(self, task: str, attempt: str, run: str | None = None) -> None:
        """Say that `attempt` has won its task: all else under the task is stopped, for good.

        Raises RefusedError 409 if another attempt had won.
        """
        winner = {"attempt": attempt} if run is None else {"attempt": attempt, "run": run}
        await self._control("POST", f"/v1/tasks/{_segment(task)}/commit", winner)

    async def _control(self, method: str, path: str, body: Mapping[str, Any] | None) -> None:
        """Outside of every scope: what ends work must go through when its time is over, too."""
        end = time.monotonic() + CANCEL_WITHIN
        await self._exchange(method, path, body, Scope(new_id("control"), task_end=end, end=end))

    async def _whole(self, path: str, body: Mapping[str, Any], within: float | None) -> Answer:
        if body.get("stream"):
            raise ValueError("this answers in one piece; call stream() for a stream")
        with scope(within=within) as own:
            _, answer = await self._generate(path, body, own)
        return answer

    async def _generate(self, path: str, body: Mapping[str, Any], own: Scope) -> Received:
        """Under a key of its own, so that it is computed once however often it is sent."""
        return await self._exchange("POST", path, body, own, {"idempotency-key": new_id("call")})

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        own: Scope,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Received:
        """The answer to a call that succeeded, sent as often as the policy allows."""
        self._stay()
        retries = Retries(self._policy, self._budget, own.end)
        streams = body is not None and bool(body.get("stream"))
        while True:
            headers = {**own.headers(time.monotonic(), time.time()), **more}
            if retries.count:
                headers["x-stainless-retry-count"] = str(retries.count)
            request = self._http.build_request(method, path, json=body, headers=headers)
            try:
                async with until(own.end):
                    return await self._send(request, streams)
            except (RefusedError, UnreachableError) as error:
                wait = retries.after(error.failure, time.monotonic(), self._chance)
                if isinstance(wait, GivenUp):
                    error.given_up = wait
                    raise
            await asyncio.sleep(wait)

    def _stay(self) -> None:
        """Raises RuntimeError on another loop, whose kept connections would fail unspeakably."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise RuntimeError("the client was used on another event loop; make one for each")

    async def _send(self, request: httpx.Request, streams: bool) -> Received:
        try:
            response = await self._http.send(request, stream=True)
            events = response.headers.get("content-type", "").startswith("text/event-stream")
            if response.is_success and events and streams:
                return response, {}
            try:
                await response.aread()
            finally:
                await response.aclose()
            if response.is_success:
                answer = read_object(response.content)
                if streams:
                    raise ValueError("what was received is no stream")
                return response, answer
        except (httpx.RequestError, ValueError) as problem:
            raise UnreachableError(problem) from problem
        error = error_object(response.content)
        raise RefusedError(response.status_code, response.headers, error)


def _check(url: str, key: str) -> None:
    """Raises ValueError, which does not say the key."""
    parts = httpx.URL(url)
    if parts.scheme not in {"http", "https"} or not parts.host:
        raise ValueError(f"the URL of the server must be like http://host:port, not {url!r}")
    if not (key and sendable(key)):
        raise ValueError("the key must be printable ASCII without spaces or line ends")


def _segment(name: str) -> str:
    """An id in a path. Raises ValueError for those that would name what is above it."""
    if name in {"", ".", ".."}:
        raise ValueError(f"{name!r} is no id")
    return quote(name, safe="")
