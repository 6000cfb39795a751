"""A scenario: what is simulated, as a TOML file says it."""

import tomllib
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

from loadgen.arrivals import Phase
from loadgen.device import Device
from loadgen.lengths import Lengths
from loadgen.tables import ScenarioError, build

FOLDER = Path(__file__).resolve().parents[1] / "scenarios"

LengthKnowledge = Literal["declared", "unknown"]


@dataclass(frozen=True, slots=True)
class FlowLevel:
    """A level of the flow tree above a client."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Objectives:
    """Deadlines of a client's requests, in seconds after arrival.

    `first_token` and `completion` each hold the values that requests draw from at random; none
    means no such deadline. With `completion_alone`, the completion deadline is that many times the
    request's time alone on the device, but at least `completion_least`.
    """

    first_token: tuple[float, ...] = ()
    completion: tuple[float, ...] = ()
    completion_alone: float = 0.0
    completion_least: float = 0.0


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Beginnings that prompts have in common: `count` of them, each `tokens` long."""

    count: int
    tokens: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.tokens < 1:
            raise ValueError("count and tokens of prefixes must be at least 1")


@dataclass(frozen=True, slots=True)
class Client:
    """A source of requests. `under` are the levels of the flow tree above it, outermost first.

    Arrivals are the `phases` one after the other. Lengths are drawn independently by `prompt` and
    `output`, or in pairs from the rows of the trace file `pairs`. With `prefixes` each prompt
    begins with one of them, drawn at random. `copies` makes as many clients, named name-1, name-2
    and so on; copies have no prefix in common. Only the `priority` policy looks at `priority`.
    """

    name: str
    phases: tuple[Phase, ...]
    prompt: Lengths | None = None
    output: Lengths | None = None
    pairs: str | None = None
    prefixes: Prefixes | None = None
    weight: float = 1.0
    priority: int = 0
    under: tuple[FlowLevel, ...] = ()
    copies: int = 1
    objectives: Objectives = field(default_factory=Objectives)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a client needs a name")
        if not self.phases:
            raise ValueError(f"client {self.name!r} has no phases, so it never sends anything")
        if (self.pairs is None) != (self.prompt is not None and self.output is not None):
            raise ValueError(f"client {self.name!r} needs either prompt and output, or pairs")
        if not 0 < self.weight < inf:
            raise ValueError(f"the weight of client {self.name!r} must be finite and above 0")
        for lengths in (self.prompt, self.output):
            if isinstance(lengths, int) and lengths < 1:
                raise ValueError(f"client {self.name!r} needs lengths of at least 1 token")
        if self.copies < 1:
            raise ValueError(f"copies of client {self.name!r} must be at least 1")


@dataclass(frozen=True, slots=True)
class TraceReplay:
    """Every request of a trace, at its time. `weights` by client; 1 for those not named.

    `most` cuts the trace short.
    """

    file: str
    most: int | None = None
    weights: dict[str, float] = field(default_factory=dict)
    objectives: Objectives = field(default_factory=Objectives)


@dataclass(frozen=True, slots=True)
class Returns:
    """Refused requests that were told when to retry come back then, at most `most` times.

    `jitter` seconds, uniform, are added to the hint. So many first refusals of a run are `checked`:
    the run is replayed without the client to see what the hint should have been.
    """

    most: int = 0
    jitter: float = 0.0
    checked: int = 0

    def __post_init__(self) -> None:
        if self.most < 0 or self.checked < 0 or not 0 <= self.jitter < inf:
            raise ValueError("most, jitter and checked must be at least 0, and jitter finite")


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the published fairness metric looks: `ticks` windows of `seconds` each.

    Tick i (from 1) is centred at warm_up + i·(horizon − warm_up)/(ticks + 1) seconds.
    """

    seconds: float = 60.0
    ticks: int = 19
    warm_up: float = 30.0
    horizon: float = 600.0

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.ticks < 1 or self.horizon <= self.warm_up:
            raise ValueError("windows need seconds and ticks above 0 and a horizon after warm_up")


@dataclass(frozen=True, slots=True)
class Ratio:
    """The mean batch of `policy` over that of another is to be what theory expects."""

    policy: str
    over: str
    expected: float

    def __post_init__(self) -> None:
        if not 0 < self.expected < inf:
            raise ValueError(f"expected must be finite and above 0, not {self.expected}")


Shown = Literal["cached", "tpot", "outcomes"]


@dataclass(frozen=True, slots=True)
class Grid:
    """What a run without options covers. Goodput is told as a ratio to that of `baseline`.

    `show` names what the tables tell beside the usual, `ratios` what is compared with theory.
    """

    policies: tuple[str, ...] = ()  # none: all
    seeds: int = 1
    scales: tuple[float, ...] = (1.0,)  # of all arrival rates
    baseline: str | None = None
    show: tuple[Shown, ...] = ()
    ratios: tuple[Ratio, ...] = ()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, not {self.seeds}")
        for scale in self.scales:
            if not 0 < scale < inf:
                raise ValueError(f"rates are multiplied by finite numbers above 0, not {scale}")

    def named(self) -> list[str]:
        """Every policy that is named anywhere in it."""
        baseline = [] if self.baseline is None else [self.baseline]
        compared = [name for ratio in self.ratios for name in (ratio.policy, ratio.over)]
        return [*self.policies, *baseline, *compared]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about one simulation but the policy, the seed and the rate scale.

    `kernel` holds `kv_tokens` and fields of the kernel's configuration; `policies` one table a
    policy. `drain` runs on until all work is done; otherwise the run stops at `duration`.
    `lengths` says whether a request declares its true output length as its cap, or `cap`.
    """

    title: str
    duration: float
    kernel: dict[str, Any]
    policies: dict[str, dict[str, Any]]
    clients: tuple[Client, ...] = ()
    trace: TraceReplay | None = None
    device: Device = field(default_factory=Device)
    lengths: LengthKnowledge = "declared"
    cap: int = 1024
    drain: bool = True
    measure_from: float = 0.0  # requests that arrive earlier are warm-up
    returns: Returns = field(default_factory=Returns)
    windows: Windows = field(default_factory=Windows)
    grid: Grid = field(default_factory=Grid)

    def __post_init__(self) -> None:
        if bool(self.clients) == (self.trace is not None):
            raise ValueError("a scenario has either clients or a trace")
        if not self.policies:
            raise ValueError("a scenario needs at least one policy, as in [policies.fair]")
        if not 0 < self.duration < inf or self.cap < 1:
            raise ValueError("duration and cap must be above 0, and duration finite")
        for name in self.grid.named():
            if name not in self.policies:
                raise ValueError(f"grid names the policy {name!r}, which is not under policies")
        names = [client.name for client in self.clients]
        if len(set(names)) < len(names):
            raise ValueError("two clients have the same name")


def load_scenario(name: str) -> Scenario:
    """The scenario in the file `name`, or the shipped one of that name. Raises ScenarioError."""
    path = Path(name)
    if not path.suffix and not path.exists():
        path = FOLDER / f"{name}.toml"
        if not path.is_file():
            raise ScenarioError(
                f"no scenario is called {name!r}; see the list with `watermaster simulate --list`"
            )
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise ScenarioError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: {error}") from None
    try:
        return build(Scenario, table, "")
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def shipped() -> list[tuple[str, str]]:
    """Name and title of every scenario that comes with the project."""
    names = sorted(path.stem for path in FOLDER.glob("*.toml"))
    return [(name, load_scenario(name).title) for name in names]
