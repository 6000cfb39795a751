"""How requests ended, by policy and client."""

from collections.abc import Sequence

from loadgen.endings import KINDS
from loadgen.sweep import Run


def endings_table(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and one row a policy, rate scale and client: sums over all seeds.

    See `loadgen.endings` for the kinds. What never happened in any row is left out.
    """
    sums: dict[tuple[str, str, str], dict[str, int]] = {}
    for run in runs:
        for client in run.figures["clients"]:
            row = (run.cell.policy, f"{run.cell.scale:g}", client["client"])
            total = sums.setdefault(row, {})
            for kind, count in client["endings"].items():
                total[kind] = total.get(kind, 0) + count
    kinds = [kind for kind in KINDS if any(total[kind] for total in sums.values())]
    header = ("policy", "rate", "client", "offered", *kinds, "output tokens in time")
    columns = ("offered", *kinds, "tokens_in_time")
    rows = [(*row, *(f"{total[name]:,}" for name in columns)) for row, total in sums.items()]
    return header, rows
