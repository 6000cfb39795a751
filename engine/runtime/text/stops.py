"""Finds one stop string in text that arrives in pieces."""


class StopMatcher:
    """The automaton of Knuth, Morris and Pratt, "Fast Pattern Matching in Strings", 1977.

    `matched` is the length of the longest suffix of the text so far that begins the stop string.
    The time of a call is proportional to its new text. The table of borders grows with the longest
    match seen, so that a stop string of thousands of characters costs nothing before it shows up.
    """

    __slots__ = ("_borders", "matched", "stop")

    def __init__(self, stop: str) -> None:
        if not stop:
            raise ValueError("a stop string must not be empty")
        self.stop = stop
        self.matched = 0
        self._borders = [0]

    def feed(self, text: str) -> int | None:
        """Take more text; return how much of it completes the stop string, or None."""
        stop = self.stop
        position = 0
        while position < len(text):
            if self.matched == 0:  # nothing to extend: skip ahead to the next possible beginning
                position = text.find(stop[0], position)
                if position < 0:
                    return None
            while self.matched and stop[self.matched] != text[position]:
                self.matched = self._border(self.matched)
            if stop[self.matched] == text[position]:
                self.matched += 1
            position += 1
            if self.matched == len(stop):
                return position
        return None

    def _border(self, length: int) -> int:
        """Length of the longest proper prefix of `stop[:length]` that is also its suffix."""
        stop, borders = self.stop, self._borders
        while len(borders) < length:
            border, character = borders[-1], stop[len(borders)]
            while border and stop[border] != character:
                border = borders[border - 1]
            borders.append(border + (stop[border] == character))
        return borders[length - 1]
