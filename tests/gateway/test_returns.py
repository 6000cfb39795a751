"""How a refused caller is known when it comes back."""

import pytest

from gateway.errors import ApiError
from gateway.lineage import read_ids
from gateway.returns import LONGEST_KEY, Return, read_key, read_return


@pytest.mark.parametrize(
    ("headers", "known"),
    [
        ({}, Return()),
        ({"x-task-id": "t1"}, Return(("task:t1",))),
        ({"idempotency-key": "k"}, Return(("key:k",), "k")),
        (
            {"x-task-id": "t1", "idempotency-key": "k", "x-stainless-retry-count": "2"},
            Return(("task:t1", "key:k"), "k", retry=True),
        ),
        ({"x-stainless-retry-count": "0"}, Return()),
        ({"x-stainless-retry-count": "1" * 400}, Return(retry=True)),
        ({"x-stainless-retry-count": "-1"}, Return()),
        ({"x-stainless-retry-count": "²"}, Return()),
    ],
)
def test_what_headers_say_of_a_return(headers, known):
    assert read_return(headers, read_ids(headers, "req-1")) == known


@pytest.mark.parametrize(
    "key", ["", "k" * (LONGEST_KEY + 1), "tab\there", "é", "a\x00", "wm-0123456789ab-secret"]
)
def test_a_malformed_key_is_refused_and_not_echoed(key):
    headers = {"idempotency-key": key}
    with pytest.raises(ApiError) as caught:
        read_return(headers, read_ids({}, "req-1"))
    assert caught.value.param == "idempotency-key"
    assert len(key) < 2 or key not in caught.value.message


@pytest.mark.parametrize("key", ["k" * LONGEST_KEY, '"8e03978e-40d5-43dd-bc93"', "~ !"])
def test_a_key_is_any_printable_text(key):
    assert read_key({"idempotency-key": key}) == key
