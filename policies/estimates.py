"""Running estimates: how fast queued work drains, and what preempted work comes back beside."""

from telemetry.units import SECOND

MOST_TIMES = 10.0  # what is usual, up to which a time is believed to be the work's
MOVES_FADING = 0.98  # of what steps waited for, a step that moves
COMPANY_WEIGHT = 0.02  # of a sequence that came back, in the means of what it came back beside


def bounded(seconds: float, usual: float) -> float:
    """A measured time as it may enter a mean, where such work takes `usual` seconds.

    A process that is stopped, starved or swapped out makes one step last a minute. That says
    nothing of the steps to come, and would stand in a mean for hundreds of them, or, once nothing
    runs any more, for good. So whatever lies beyond is pulled in to the edge of what is believable
    (winsorising; one observation's influence is bounded: Huber, Robust Statistics, 1981). Far
    enough out that a device which has become slower is followed as quickly as by a plain mean.
    """
    return min(seconds, MOST_TIMES * usual)


class Standstill:
    """How much time went by, while work was running, that no step could have taken. Nanoseconds."""

    def __init__(self) -> None:
        self._lost = 0
        self._since: int | None = None  # the newest commit, or the launch of the first step

    def launch(self, now: int) -> None:
        """A step is launched."""
        if self._since is None:
            self._since = now

    def open(self, now: int) -> float:
        """Seconds since a step was committed last; 0 while nothing runs."""
        return 0.0 if self._since is None else (now - self._since) / SECOND

    def commit(self, now: int, believed: float) -> None:
        """A step is committed; of the seconds before it, so many are `believed`."""
        self._lost, self._since = self.by(now, believed), now

    def rest(self) -> None:
        """Nothing runs any more."""
        self._since = None

    def by(self, now: int, believed: float) -> int:
        """All that is lost until `now`, if at most so many seconds since the last commit count."""
        return self._lost + max(0, int((self.open(now) - believed) * SECOND))


class DrainRate:
    """Tokens per second of engine time, as an exponentially weighted mean over steps."""

    def __init__(self, weight: float = 0.05) -> None:
        self._weight = weight
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """One step computed `tokens` positions in `seconds`."""
        self._tokens += self._weight * (tokens - self._tokens)
        self._seconds += self._weight * (seconds - self._seconds)

    @property
    def seconds_per_token(self) -> float:
        """Engine time of one position; 0 before any step was seen."""
        return self._seconds / self._tokens if self._tokens > 0 else 0.0


class Company:
    """What steps that bring preempted work back compute besides, as running means.

    The first prompt of a step costs more than a further one, so it matters how many there are.
    """

    def __init__(self) -> None:
        self.alone = 1.0  # of a step with no other prompt, the part that is one sequence's
        self.tokens = 0.0  # of other prompts, where there are some
        self._seen = 0

    def observe(self, returning: int, other: int) -> None:
        """A step computes so many sequences again, and `other` tokens of prompts besides."""
        part = 0.0 if other else 1 / returning
        self._seen += returning
        weight = returning * max(COMPANY_WEIGHT, 1 / (self._seen + 1))
        self.alone += min(1.0, weight) * (part - self.alone)
        if other:
            self.tokens += min(1.0, weight) * (other - self.tokens)


class MoveStalls:
    """How long steps wait for a block of KV that they bring back, as a fading mean, and what they

    take beside that which moves may overlap, as a running mean. Nanoseconds.
    """

    def __init__(self) -> None:
        self._stalls = 0.0
        self._blocks = 0.0
        self._seen = 0
        self.rest = 0.0

    def observe(self, blocks: int, stall: float) -> None:
        """A step brings so many blocks back, and waits `stall` nanoseconds for them."""
        self._stalls = MOVES_FADING * self._stalls + stall
        self._blocks = MOVES_FADING * self._blocks + blocks

    def observe_rest(self, rest: float) -> None:
        """A step that waits for its moves takes `rest` nanoseconds longer than they do."""
        self._seen += 1
        self.rest += max(1 - MOVES_FADING, 1 / self._seen) * (rest - self.rest)

    @property
    def per_block(self) -> float:
        """Nanoseconds a block; 0 before anything was brought back."""
        return max(0.0, self._stalls / self._blocks) if self._blocks else 0.0
