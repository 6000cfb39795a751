"""Published traces as rows of (time, client, prompt tokens, output tokens)."""

import csv
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

import numpy as np
import numpy.typing as npt

from loadgen.data import DataFolder
from loadgen.tables import ScenarioError

FloatArray = npt.NDArray[np.float64]
LongArray = npt.NDArray[np.int64]

MULTI_CLIENT = ("t", "client", "prompt", "output")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class Trace:
    """One row a request, in order of arrival. `times` are seconds from the first request on."""

    times: FloatArray
    clients: tuple[str, ...]
    prompts: LongArray
    outputs: LongArray


def read_trace(name: str, data: DataFolder, most: int | None = None) -> Trace:
    """The first `most` rows of a CSV file with the columns of one of the known traces."""
    with data.find(name).open(newline="") as file:
        reader = csv.reader(file)
        header = tuple(next(reader, ()))
        rows = list(islice((row for row in reader if row), most))
    if header == MULTI_CLIENT:
        times = [float(row[0]) for row in rows]
        clients = tuple(row[1] for row in rows)
        lengths = [(int(row[2]), int(row[3])) for row in rows]
    elif header == AZURE:
        stamps = [datetime.fromisoformat(row[0][:26]) for row in rows]
        times = [(stamp - stamps[0]).total_seconds() for stamp in stamps]
        clients = ("azure",) * len(rows)
        lengths = [(int(row[1]), int(row[2])) for row in rows]
    else:
        raise ScenarioError(f"{name} has the columns {', '.join(header)}, which no trace has")
    prompts, outputs = np.asarray(lengths, np.int64).reshape(-1, 2).T
    return Trace(np.asarray(times), clients, np.maximum(prompts, 1), np.maximum(outputs, 1))
