"""The store's Lua scripts, one multi-step change or reading each, run atomically by the server.

Times are the server's own (`TIME`), so that replicas with different clocks agree.
"""

from importlib.resources import files

_FUNCTION = "note_change"


def sources() -> dict[str, str]:
    """Every script's text by its name, after the function for the log of changes if it calls it."""
    texts = {
        entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
        for entry in files(__name__).iterdir()
        if entry.name.endswith(".lua")
    }
    function = texts.pop(_FUNCTION)
    return {
        name: f"{function}{text}" if f"{_FUNCTION}(" in text else text
        for name, text in texts.items()
    }
