"""File locks, which the system releases however the process that holds one ends."""

import fcntl


def try_lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file, or turn the lock on it into one of that kind; False if others' forbid."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
