"""Mean batches of pairs of policies, beside the ratio that theory expects."""

from collections.abc import Sequence
from statistics import fmean

from loadgen.scenario import Ratio
from loadgen.sweep import Run

HEADER = ("policy", "batch", "over", "batch of that", "ratio", "expected", "deviation")


def ratio_table(
    runs: Sequence[Run], ratios: Sequence[Ratio]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and one row a pair of which both were run, over all seeds at the first rate."""
    first = runs[0].cell.scale
    batches: dict[str, list[float]] = {}
    for run in runs:
        if run.cell.scale == first:
            batches.setdefault(run.cell.policy, []).append(run.figures["steps"]["mean_batch"])
    rows: list[tuple[str, ...]] = []
    for pair in ratios:
        if pair.policy in batches and pair.over in batches:
            batch, other = fmean(batches[pair.policy]), fmean(batches[pair.over])
            ratio = batch / other
            means = (pair.policy, f"{batch:.3f}", pair.over, f"{other:.3f}")
            deviation = f"{ratio / pair.expected - 1:+.2%}"
            rows.append((*means, f"{ratio:.4f}", f"{pair.expected:.4f}", deviation))
    return HEADER, rows
