"""Server-sent events, from bytes as they arrive to the data of each event."""

DONE = "[DONE]"


class EventReader:
    """Lines end with a line feed alone or after a carriage return.

    httpx's own `aiter_lines` also breaks at U+2028 and its like, which JSON leaves as they are.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the pieces of one that is not complete
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that `piece` completes; comments and other fields are passed."""
        first, *others = piece.split(b"\n")
        self._line.append(first)
        if not others:
            return []
        lines = [b"".join(self._line), *others[:-1]]
        self._line = [others[-1]]
        events = []
        for line in lines:
            text = line.removesuffix(b"\r").decode()
            if text.startswith("data:"):
                self._data.append(text[5:].removeprefix(" "))
            elif not text and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events
