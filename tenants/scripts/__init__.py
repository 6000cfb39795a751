"""The store's Lua scripts, one multi-step change each, run atomically by the server.

Times are the server's own (`TIME`), so that replicas with different clocks agree.
"""

from importlib.resources import files


def sources() -> dict[str, str]:
    """Every script's text by its name."""
    return {
        entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
        for entry in files(__name__).iterdir()
        if entry.name.endswith(".lua")
    }
