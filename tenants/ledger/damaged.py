"""Files among the journals that are none, kept for a while for whoever wants to look into them."""

import logging
import time
from pathlib import Path

SUFFIX = ".damaged"
MOST = 16  # of a folder, the newest
KEPT = 30 * 86_400  # seconds since it was written last

log = logging.getLogger("watermaster.usage")


def put_aside(path: Path, why: Exception) -> None:
    """Take `path` out of the journals."""
    aside = path.with_suffix(SUFFIX)
    log.error("%s is put aside as %s: %s", path, aside.name, why)
    path.replace(aside)
    prune(path.parent)


def prune(folder: Path) -> None:
    """Delete those put aside that are too old or too many."""
    aged = sorted(((_written(path), path) for path in folder.glob(f"*{SUFFIX}")), reverse=True)
    oldest = time.time() - KEPT
    for position, (written, path) in enumerate(aged):
        if position >= MOST or written < oldest:
            log.warning("%s is deleted: damaged files are kept for a while only", path)
            path.unlink(missing_ok=True)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # somebody else deleted it
        return 0.0
