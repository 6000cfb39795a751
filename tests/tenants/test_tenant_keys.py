import hashlib

import pytest

from tenants import keys


def test_a_new_key_parses_to_its_own_digest() -> None:
    raw, public_id, digest = keys.new_key()
    prefix, middle, secret = raw.split("-")
    assert (prefix, middle) == ("wm", public_id)
    assert digest == hashlib.sha256(secret.encode()).hexdigest()
    presented = keys.parse(raw)
    assert presented is not None
    assert presented.public_id == public_id
    assert keys.matches(presented, digest)
    assert secret not in repr(presented)
    assert digest not in repr(presented)


def test_another_secret_does_not_match() -> None:
    _, public_id, digest = keys.new_key()
    other, _, _ = keys.new_key()
    presented = keys.parse(f"wm-{public_id}-{other.split('-')[2]}")
    assert presented is not None
    assert not keys.matches(presented, digest)


def test_keys_differ() -> None:
    drawn = [keys.new_key() for _ in range(200)]
    assert len({raw for raw, _, _ in drawn}) == 200
    assert len({public_id for _, public_id, _ in drawn}) == 200


_SECRET = "s" * 43


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "wm",
        "wm--",
        f"sk-0123456789ab-{_SECRET}",
        f"wm-0123456789ab-{_SECRET[:-1]}",
        f"wm-0123456789ab-{_SECRET}s",
        f"wm-0123456789AB-{_SECRET}",
        f"wm-0123456789ab-{_SECRET}\n",
        f" wm-0123456789ab-{_SECRET}",
        f"wm-0123456789ab-{_SECRET[:-1]}é",
        f"wm-٠123456789ab-{_SECRET}",  # a digit, but not one of ours
        "wm-" + "a" * 1_000_000,
    ],
)
def test_refuses_other_forms(raw: str) -> None:
    assert keys.parse(raw) is None
