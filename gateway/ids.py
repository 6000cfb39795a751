"""Names for requests and answers: unique, but no secrets.

They open nothing, so they need not come from the system's source of chance, whose every call gives
up the interpreter's lock and then waits for the engine thread.
"""

import random


def fresh(prefix: str) -> str:
    """`prefix` and 32 hexadecimal digits."""
    return f"{prefix}{random.getrandbits(128):032x}"
