"""A bare endpoint on the same uvicorn, uvloop and httptools: what HTTP itself costs.

Run as `python -m loadgen.bare_server` by the gateway bench; it prints its port. `POST /json` reads
and parses a JSON body and answers `answer` of it, `POST /sse` sends `event` as an event `times`
times; `POST /v1/traces` takes in what an OpenTelemetry exporter sends.
"""

import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


async def _json(request: Request) -> Response:
    return JSONResponse((await request.json())["answer"])


async def _sse(request: Request) -> Response:
    body = await request.json()
    event = f"data: {body['event']}\n\n".encode()

    async def events() -> AsyncIterator[bytes]:
        for _ in range(body["times"]):
            yield event
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def _traces(request: Request) -> Response:
    await request.body()
    return Response()


def main() -> None:
    """Serve until terminated."""
    routes = [
        Route("/json", _json, methods=["POST"]),
        Route("/sse", _sse, methods=["POST"]),
        Route("/v1/traces", _traces, methods=["POST"]),
    ]
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        Starlette(routes=routes),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
