"""The figures of one run, as plain data for JSON."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.endings import endings
from loadgen.fairness_metrics import service_gap, window_table
from loadgen.goodput import COMPLETE, goodput, on_time_share
from loadgen.hints import Hint
from loadgen.record import Fate, Path, Recorder, ServiceLog
from loadgen.returns import returns
from loadgen.scenario import Scenario
from loadgen.workload import Workload
from telemetry.units import SECOND

QUANTILES = (50, 95, 99)

Summary = dict[str, Any]


def summarise(
    scenario: Scenario,
    workload: Workload,
    recorder: Recorder,
    now: int,
    hints: Sequence[Hint] = (),
) -> Summary:
    """What `recorder` saw until `now` nanoseconds. Latencies leave the warm-up out."""
    fates = list(recorder.fates.values())
    start = scenario.measure_from * SECOND
    measured = [fate for fate in fates if fate.request.arrival >= start]
    windows = window_table(fates, len(workload.flows), scenario.windows)
    log = recorder.log()
    gap = service_gap(log)
    served = log.served(int(start), int(scenario.duration * SECOND))
    return {
        "seconds": now / SECOND,
        "throughput": _throughput(fates, now),
        "requests": _outcomes(measured),
        "ttft": _quantiles(_first_token_times(measured)),
        "tpot": _quantiles(_token_times(measured)),
        "completion": _quantiles(_completion_times(measured)),
        "steps": _steps(recorder, now),
        "cached_share": _cached_share(recorder),
        "rework": _rework(recorder),
        "fairness": {
            "max": windows.max,
            "avg": windows.avg,
            "var": windows.var,
            "peak_gap": windows.peak_gap,
            "ticks": list(windows.ticks),
            "sup_gap": gap.value,
            "sup_gap_pair": None if gap.pair is None else ["/".join(path) for path in gap.pair],
        },
        "goodput": goodput(measured, scenario.duration - scenario.measure_from),
        "clients": _clients(
            workload,
            log,
            dict(zip(log.paths, served.tolist(), strict=True)),
            measured,
            _returns_of(scenario, workload, recorder, measured, hints),
        ),
    }


def _throughput(fates: Sequence[Fate], now: int) -> float:
    """Prompt and output tokens a second of requests that ran to their end."""
    done = [fate for fate in fates if fate.cause in COMPLETE]
    tokens = sum(fate.request.prompt + fate.output_tokens for fate in done)
    return tokens * SECOND / now if now else 0.0


def _outcomes(fates: Sequence[Fate]) -> dict[str, Any]:
    refused = Counter(f.cause.value for f in fates if f.cause and f.arrived is None)
    ended = Counter(f.cause.value for f in fates if f.cause and f.arrived is not None)
    return {
        "offered": len(fates),
        "accepted": sum(1 for f in fates if f.arrived is not None),
        "completed": sum(1 for f in fates if f.cause in COMPLETE),
        "refused": dict(sorted(refused.items())),
        "ended": dict(sorted(ended.items())),
        "unfinished": sum(1 for f in fates if f.cause is None),
    }


def _first_token_times(fates: Sequence[Fate]) -> list[float]:
    return [
        (fate.first_token - fate.request.arrival) / SECOND
        for fate in fates
        if fate.first_token is not None
    ]


def _token_times(fates: Sequence[Fate]) -> list[float]:
    """Mean seconds between tokens of each completed request of at least two."""
    return [
        (fate.ended - fate.first_token) / (fate.output_tokens - 1) / SECOND
        for fate in fates
        if fate.cause in COMPLETE and fate.output_tokens > 1 and fate.first_token and fate.ended
    ]


def longest_steps(fates: Sequence[Fate], times: npt.NDArray[np.int64]) -> list[float]:
    """The longest time from one step's end to the next while each completed request decoded: the

    longest that a caller waited for the next token, unless it was preempted.
    """
    longest = []
    for fate in fates:
        if fate.cause in COMPLETE and fate.output_tokens > 1 and fate.first_token and fate.ended:
            first, last = np.searchsorted(times, (fate.first_token, fate.ended))
            step = float(np.diff(times[first : last + 1]).max())
            longest.append(round(step / SECOND, 5))
    return longest


def _completion_times(fates: Sequence[Fate]) -> list[float]:
    return [
        (fate.ended - fate.request.arrival) / SECOND
        for fate in fates
        if fate.cause in COMPLETE and fate.ended is not None
    ]


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.percentile(values, QUANTILES)
    return {f"p{q}": float(value) for q, value in zip(QUANTILES, found, strict=True)}


def _steps(recorder: Recorder, now: int) -> dict[str, float]:
    totals = recorder.totals
    steps = max(1, totals.steps)
    return {
        "count": totals.steps,
        "mean_ms": totals.busy / steps / 1e6,
        "mean_batch": totals.running / steps,
        "busy_share": totals.busy / now if now else 0.0,
    }


def _cached_share(recorder: Recorder) -> float:
    """Of the prompt tokens needed for the first time, the part found in the prefix cache."""
    totals = recorder.totals
    return totals.cached_tokens / max(1, totals.cached_tokens + totals.prompt_tokens)


def _rework(recorder: Recorder) -> dict[str, Any]:
    totals = recorder.totals
    meter, busy = recorder.meter, max(1, totals.busy)
    computed = totals.prompt_tokens + totals.output_tokens + totals.recomputed_tokens
    return {
        "recomputed_tokens": totals.recomputed_tokens,
        "recomputed_share": totals.recomputed_tokens / max(1, computed),
        "swapped_blocks": totals.swapped_blocks,
        "recompute_time_share": meter.recompute / busy,
        "swap_stall_share": totals.swap_stall / busy,
        "recompute_ms": meter.recompute / 1e6,
        "swap_stall_ms": totals.swap_stall / 1e6,
        "predicted_ms": {mode: cost / 1e6 for mode, cost in sorted(totals.predicted_cost.items())},
        "preemptions": dict(sorted(totals.preemptions.items())),
        "lag_tokens": totals.lag_tokens,
    }


def _returns_of(
    scenario: Scenario,
    workload: Workload,
    recorder: Recorder,
    fates: Sequence[Fate],
    hints: Sequence[Hint],
) -> list[dict[str, Any] | None]:
    """By client; None where nobody ever comes back."""
    if not scenario.returns.most:
        return [None for _ in workload.flows]
    return [
        {
            **returns(
                [fate for fate in fates if fate.request.client == client],
                [hint for hint in hints if hint.client == client],
            ),
            "longest_queue": recorder.longest_queue(tuple(node.name for node in flow)),
        }
        for client, flow in enumerate(workload.flows)
    ]


def _clients(
    workload: Workload,
    log: ServiceLog,
    served: dict[Path, float],
    fates: Sequence[Fate],
    returned: Sequence[dict[str, Any] | None],
) -> list[dict[str, Any]]:
    """`served` holds cost units over weight by path, from the warm-up to the last arrival."""
    by_client: list[list[Fate]] = [[] for _ in workload.flows]
    for fate in fates:
        by_client[fate.request.client].append(fate)
    rows = []
    for flow, own, back in zip(workload.flows, by_client, returned, strict=True):
        path = tuple(node.name for node in flow)
        rows.append(
            {
                "client": "/".join(path),
                "weight": flow[-1].weight,
                "offered": len(own),
                "completed": sum(1 for fate in own if fate.cause in COMPLETE),
                "on_time": on_time_share(own),
                "service": served[path] * flow[-1].weight,
                "ttft": _quantiles(_first_token_times(own)),
                "ttft_seconds": [round(value, 4) for value in _first_token_times(own)],
                "tpot_seconds": [round(value, 5) for value in _token_times(own)],
                "longest_step_seconds": longest_steps(own, log.times),
                "endings": endings(own),
                "returns": back,
            }
        )
    return rows
