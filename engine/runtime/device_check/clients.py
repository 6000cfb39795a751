"""The Python load of streaming clients, without a server: what a step's tokens cost the host."""

import json
import threading
from types import TracebackType
from typing import Self

CHUNK = {
    "id": "chatcmpl-0123456789abcdef",
    "object": "chat.completion.chunk",
    "model": "llama-3-8b",
    "choices": [{"index": 0, "delta": {"content": " water"}, "finish_reason": None}],
}


class StreamingClients:
    """A thread that, for every step handed out, writes and reads one chunk of each stream.

    Steps that come while it is busy wait in line, as a server's would; it holds the interpreter's
    lock as an event loop does.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._steps = threading.Semaphore(0)
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="clients")

    def hand_out(self) -> None:
        """One step's tokens are there."""
        self._steps.release()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        self._steps.release()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            self._steps.acquire()
            if self._ended:
                return
            for stream in range(self._streams):
                line = f"data: {json.dumps(CHUNK | {'created': stream})}\n\n".encode()
                json.loads(line[6:])
