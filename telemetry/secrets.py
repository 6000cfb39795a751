"""What a secret looks like, so that none is shown: whoever writes text for others masks it here."""

import re

# A key's public id may be shown, its secret may not; nor may a password in a URL.
_KEY = re.compile(r"(wm-[0-9a-f]+-)\w+")
_PASSWORD = re.compile(r"(://)[^/\s@]*@")
_OPTION = re.compile(r"([?&][\w-]*password=)[^&#\s]*", re.IGNORECASE)


def masked(text: str) -> str:
    """`text` with a star for each secret in it."""
    without_keys = _OPTION.sub(r"\1***", _KEY.sub(r"\1***", text))
    return _PASSWORD.sub(r"\1***@", without_keys)


def holds_key(text: str) -> bool:
    """Whether there is an API key in `text`, pasted where none belongs."""
    return _KEY.search(text) is not None
