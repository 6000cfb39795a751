"""Runs of a grid as a table over seeds, and as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np

from loadgen.endings_table import endings_table
from loadgen.ratio_table import ratio_table
from loadgen.scenario import Scenario
from loadgen.sweep import Run

Row = tuple[str, ...]


def to_json(scenario: Scenario, name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Everything about the runs; the same runs give the same text."""
    return {
        "scenario": name,
        "title": scenario.title,
        "profile": scenario.device.profile,
        "runs": [
            {
                "policy": run.cell.policy,
                "scale": run.cell.scale,
                "seed": run.cell.seed,
                **run.figures,
            }
            for run in runs
        ],
    }


Table = tuple[Row, list[Row]]

CLIENTS_SHOWN = 12


def write(
    folder: Path, name: str, scenario: Scenario, runs: Sequence[Run], command: str
) -> tuple[Path, Path]:
    """Put all figures and the tables, with the command that made them, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    figures, text = folder / f"{name}.json", folder / f"{name}.md"
    figures.write_text(json.dumps(to_json(scenario, name, runs), indent=1) + "\n")
    parts = [
        f"# {scenario.title}\n",
        f"Cost profile {scenario.device.profile}. Made by\n\n    {command}\n",
        *(markdown(*one) for one in tables(scenario, runs)),
    ]
    text.write_text("\n".join(parts))
    return figures, text


def tables(scenario: Scenario, runs: Sequence[Run]) -> list[Table]:
    """The table of policies; where there are few clients that of clients; that of deadlines; and

    what else the scenario wants shown.
    """
    show = scenario.grid.show
    found = [policy_table(runs, cached="cached" in show)]
    if scenario.grid.ratios:
        found.append(ratio_table(runs, scenario.grid.ratios))
    if 1 < len(runs[0].figures["clients"]) <= CLIENTS_SHOWN:
        found.append(client_table(runs, tpot="tpot" in show))
    if "outcomes" in show:
        found.append(endings_table(runs))
    if any(client["returns"] for client in runs[0].figures["clients"]):
        found.append(returns_table(runs))
    if any(run.figures["goodput"] for run in runs):
        found.append(goodput_table(runs, scenario.grid.baseline))
    return found


def _groups(runs: Sequence[Run]) -> dict[tuple[str, float], list[Run]]:
    groups: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.cell.policy, run.cell.scale), []).append(run)
    return groups


def policy_table(runs: Sequence[Run], *, cached: bool = False) -> Table:
    """Header and one row a policy and rate scale: mean ± deviation, worst where it matters.

    With `cached`, the share of prompt tokens found in the prefix cache too.
    """
    groups = _groups(runs)
    scaled = len({scale for _, scale in groups}) > 1
    shared = len(runs[0].figures["clients"]) > 1
    header = ("policy", *(("rate",) if scaled else ()), "seeds")
    header += (_FAIRNESS if shared else ()) + _LOAD + (("cached",) if cached else ())
    rows = []
    for (policy, scale), group in groups.items():
        row = (policy, *((f"{scale:g}",) if scaled else ()), str(len(group)))
        row += _fairness(group) if shared else ()
        row += _load(group)
        if cached:
            row += (f"{fmean(run.figures['cached_share'] for run in group):.1%}",)
        rows.append(row)
    return header, rows


def client_table(runs: Sequence[Run], *, tpot: bool = False) -> Table:
    """One row a policy, rate scale and client: deadlines kept, share of service while
    requests arrive, and TTFT over all seeds; with `tpot`, mean times between tokens too.
    """
    due = any(client["on_time"] is not None for client in runs[0].figures["clients"])
    header = ("policy", "rate", "client", "weight", "completed", *(("on time",) if due else ()))
    header += ("share", "p50 TTFT", "p99 TTFT", *(_TPOT if tpot else ()))
    rows: list[Row] = []
    for (policy, scale), group in _groups(runs).items():
        total = sum(c["service"] for run in group for c in run.figures["clients"])
        for clients in zip(*(run.figures["clients"] for run in group), strict=True):
            served = sum(client["service"] for client in clients)
            row = (
                policy,
                f"{scale:g}",
                clients[0]["client"],
                f"{clients[0]['weight']:g}",
                str(sum(client["completed"] for client in clients)),
                *((_on_time(clients),) if due else ()),
                f"{served / total:.1%}" if total else "-",
                *_pooled(clients, "ttft_seconds", "{:.2f} s"),
                *(_token_times(clients) if tpot else ()),
            )
            rows.append(row)
    return header, rows


_TPOT = ("p50 TPOT", "p99 TPOT", "p50 longest step", "p99 longest step")


def _token_times(clients: Sequence[dict[str, Any]]) -> Row:
    means = _pooled(clients, "tpot_seconds", "{:.3f} s")
    return means + _pooled(clients, "longest_step_seconds", "{:.3f} s")


def _pooled(clients: Sequence[dict[str, Any]], name: str, form: str) -> Row:
    """Median and 99th percentile of the times of one client in all its runs."""
    times = [time for client in clients for time in client[name]]
    return tuple(map(form.format, np.percentile(times, (50, 99)).tolist())) if times else ("-", "-")


def returns_table(runs: Sequence[Run]) -> Table:
    """One row a policy, rate scale and client, over all seeds: what refusals promised, and what

    became of those who came back. The last row of a scale, `all`, is over the clients.
    """
    rows: list[Row] = []
    for (policy, scale), group in _groups(runs).items():
        by_client: dict[str, list[dict[str, Any]]] = {}
        for client in (one for run in group for one in run.figures["clients"]):
            by_client.setdefault(client["client"], []).append(client["returns"])
        everyone = [figures for many in by_client.values() for figures in many]
        by_client |= {"all": everyone} if len(by_client) > 1 else {}
        rows += [
            (policy, f"{scale:g}", client, *_returns(figures))
            for client, figures in by_client.items()
        ]
    return ("policy", "rate", "client", *_RETURNS), rows


_RETURNS = (
    "fresh taken in",
    "fresh p50 TTFT",
    "fresh p99 TTFT",
    "refused",
    "promised",
    "promised returns taken in",
    "other returns taken in",
    "longest queue",
    "hints checked",
    "hint error",
)


def _returns(figures: Sequence[dict[str, Any]]) -> Row:
    total = {name: sum(f[name] for f in figures) for name in _COUNTED}
    times = [time for f in figures for time in f["fresh_ttft_seconds"]]
    errors = [error for f in figures for error in f["hint_errors"]]
    p50, p99 = np.percentile(times, (50, 99)).tolist() if times else (None, None)
    return (
        _share(total["fresh_admitted"], total["fresh"]),
        "-" if p50 is None else f"{p50:.2f} s",
        "-" if p99 is None else f"{p99:.2f} s",
        str(total["refused"]),
        _share(total["promised"], total["refused"]),
        _share(total["promised_admitted"], total["promised_returned"]),
        _share(total["others_admitted"], total["others_returned"]),
        str(max(f["longest_queue"] for f in figures)),
        str(len(errors)),
        f"{median(errors):.1%}" if errors else "-",
    )


_COUNTED = (
    "fresh",
    "fresh_admitted",
    "refused",
    "promised",
    "promised_returned",
    "promised_admitted",
    "others_returned",
    "others_admitted",
)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _on_time(clients: Sequence[dict[str, Any]]) -> str:
    kept = [client["on_time"] for client in clients if client["on_time"] is not None]
    return f"{fmean(kept):.1%}" if kept else "-"


def goodput_table(runs: Sequence[Run], baseline: str | None) -> Table:
    """Deadlines kept, as a ratio to the policy `baseline` too, and by thirds of length."""
    sides = ("prompt", "output")
    header = ("policy", "rate", "on time/s", *((f"/ {baseline}",) if baseline else ()))
    header += ("violations", "refused", "at arrival")
    header += tuple(f"{part} {side}s" for side in sides for part in _THIRDS)
    groups = {
        cell: [run.figures["goodput"] for run in group if run.figures["goodput"]]
        for cell, group in _groups(runs).items()
    }
    rows: list[Row] = []
    for (policy, scale), figures in groups.items():
        rate = _mean(figures, "per_second")
        row: tuple[str, ...] = (policy, f"{scale:g}", f"{rate:.3f}")
        if baseline:
            peer = _mean(groups.get((baseline, scale), []), "per_second")
            row += (f"{rate / peer:.3f}" if peer else "-",)
        early = [f for f in figures if f["refused_at_arrival"] is not None]
        row += (f"{_mean(figures, 'violations'):.1%}", f"{_mean(figures, 'refused_share'):.1%}")
        row += (f"{_mean(early, 'refused_at_arrival'):.1%}" if early else "-",)
        for side in sides:
            thirds = zip(*(f[f"by_{side}"] for f in figures), strict=True)
            row += tuple(f"{fmean(third):.1%}" for third in thirds)
        rows.append(row)
    return header, rows


def _mean(figures: Sequence[dict[str, Any]], name: str) -> float:
    return fmean(f[name] for f in figures) if figures else 0.0


_THIRDS = ("short", "middle", "long")


def markdown(header: Row, rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    cells = [tuple(cell.replace("|", "\\|") for cell in line) for line in (header, *rows)]
    lines = [cells[0], tuple("---" for _ in header), *cells[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_FAIRNESS = ("Max", "Avg", "Var", "peak gap", "sup|ΔW| mean", "worst")
_LOAD = (
    *("tok/s", "p50 TTFT", "p99 TTFT", "batch"),
    *("recomputed", "rework time", "preempted", "cost predicted / simulated"),
)


def _fairness(group: Sequence[Run]) -> Row:
    figures = [run.figures["fairness"] for run in group]
    gaps = [f["sup_gap"] for f in figures]
    return (
        _spread([f["max"] for f in figures]),
        _spread([f["avg"] for f in figures]),
        f"{fmean(f['var'] for f in figures):,.0f}",
        f"{fmean(f['peak_gap'] for f in figures):,.0f}",
        f"{fmean(gaps):,.0f}",
        f"{max(gaps):,.0f}",
    )


def _load(group: Sequence[Run]) -> Row:
    figures = [run.figures for run in group]
    return (
        f"{fmean(f['throughput'] for f in figures):.0f}",
        _seconds(figures, "p50"),
        _seconds(figures, "p99"),
        f"{fmean(f['steps']['mean_batch'] for f in figures):.1f}",
        f"{fmean(f['rework']['recomputed_share'] for f in figures):.1%}",
        f"{fmean(_rework_time(f) for f in figures):.2%}",
        f"{fmean(sum(f['rework']['preemptions'].values()) for f in figures):.0f}",
        _predicted([f["rework"] for f in figures]),
    )


def _predicted(rework: Sequence[dict[str, Any]]) -> str:
    """What preemptions were predicted to cost over what they did."""
    predicted = sum(sum(r["predicted_ms"].values()) for r in rework)
    simulated = sum(r["recompute_ms"] + r["swap_stall_ms"] for r in rework)
    return f"{predicted / simulated:.2f}" if simulated else "-"


def _rework_time(figures: dict[str, Any]) -> float:
    """Share of device time that went into recomputing and into waiting for swaps."""
    rework = figures["rework"]
    return float(rework["recompute_time_share"] + rework["swap_stall_share"])


def _seconds(figures: Sequence[dict[str, Any]], quantile: str) -> str:
    values = [f["ttft"][quantile] for f in figures if f["ttft"] is not None]
    return f"{fmean(values):.2f} s" if values else "-"


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.0f}"
    return f"{fmean(values):.0f} ± {pstdev(values):.0f}"
