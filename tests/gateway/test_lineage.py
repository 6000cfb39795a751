"""Identities from headers."""

import pytest

from gateway.errors import ApiError
from gateway.lineage import read_ids, request_id, valid_id
from telemetry.lineage import Lineage


def test_what_the_caller_says_is_kept():
    headers = {"x-task-id": "t1", "x-run-id": "r:1", "x-attempt-id": "a@1", "x-request-id": "q.1"}
    ids = read_ids(headers, request_id(headers))
    assert ids.lineage("gold") == Lineage("gold", "t1", "r:1", "a@1", "q.1")


def test_what_is_left_out_stands_for_the_request_alone():
    request = request_id({})
    assert request != request_id({})
    assert valid_id(request)
    assert read_ids({}, request).lineage("gold") == Lineage("gold", *[request] * 4)


@pytest.mark.parametrize("name", ["x-task-id", "x-run-id", "x-attempt-id", "x-request-id"])
@pytest.mark.parametrize("text", ["", "a" * 129, "a b", "a/b", "ä", "a\x00", ".hidden", "a\n", "*"])
def test_malformed_ids_are_refused_by_name_and_not_echoed(name, text):
    headers = {name: text}
    echoed = request_id(headers)
    assert echoed.startswith("req-")
    with pytest.raises(ApiError) as caught:
        read_ids(headers, echoed)
    assert (caught.value.row.status, caught.value.param) == (400, name)


def test_the_longest_id_passes():
    assert valid_id("a" * 128)
