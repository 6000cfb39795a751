"""How a refused caller is known when it comes back."""

import pytest

from gateway.lineage import read_ids
from gateway.returns import LONGEST_KEY, Return, read_return


@pytest.mark.parametrize(
    ("headers", "known"),
    [
        ({}, Return()),
        ({"x-task-id": "t1"}, Return(("task:t1",))),
        ({"idempotency-key": "k"}, Return(("key:k",))),
        (
            {"x-task-id": "t1", "idempotency-key": "k", "x-stainless-retry-count": "2"},
            Return(("task:t1", "key:k"), retry=True),
        ),
        ({"x-stainless-retry-count": "0"}, Return()),
        ({"x-stainless-retry-count": "1" * 400}, Return(retry=True)),
        ({"x-stainless-retry-count": "-1"}, Return()),
        ({"x-stainless-retry-count": "²"}, Return()),
        ({"idempotency-key": "k" * (LONGEST_KEY + 1)}, Return()),
    ],
)
def test_what_headers_say_of_a_return(headers, known):
    assert read_return(headers, read_ids(headers, "req-1")) == known
