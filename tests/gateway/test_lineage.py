"""Identities from headers."""

import pytest

from gateway.call import read_headers
from gateway.errors import ApiError
from gateway.lineage import Ids, read_ids, request_id, valid_id
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


def read(*lines: str, **headers: str) -> Ids:
    named = {f"x-{part}-id": text for part, text in headers.items()}
    headers = [(b"baggage", line.encode("latin-1")) for line in lines]
    return read_ids(named | read_headers({"headers": headers}), "req-1")


def carried(*lines: str, **headers: str) -> tuple[str | None, str | None, str | None]:
    ids = read(*lines, **headers)
    return ids.task, ids.run, ids.attempt


def test_baggage_carries_the_lineage_among_what_is_not_ours():
    line = (
        "user=ann;p,\twatermaster.task = t1 ;hops=2;x , watermaster.run=r%3A1,"
        "watermaster.attempt=a%2B1+2,watermaster.tasks=no"
    )
    assert carried(line) == ("t1", "r:1", "a+1+2")


def test_baggage_may_come_in_several_headers_and_the_last_of_a_key_counts():
    lines = ("watermaster.task=t1,watermaster.run=r1", "watermaster.task=t2")
    assert carried(*lines) == ("t2", "r1", None)


def test_explicit_headers_win_over_baggage_one_by_one():
    line = "watermaster.task=t1,watermaster.run=r1"
    assert carried(line, task="mine") == ("mine", "r1", None)


@pytest.mark.parametrize(
    "line",
    [
        "",
        ",,;=,",
        "watermaster.task",
        "watermaster.task=",
        "watermaster.task=a b",
        "watermaster.task=%ff",
        "watermaster.task=%zz",
        "watermaster.task=a/b",
        "watermaster.task=" + "a" * 129,
        "Watermaster.Task=t1",
        "=watermaster.task=t1",
        "watermaster.task==t1",
        "\x00\xff" * 100,
    ],
)
def test_malformed_baggage_is_ignored(line):
    assert carried(line) == (None, None, None)
    assert carried(line, run="r1") == (None, "r1", None)


def test_members_that_are_no_ids_are_named():
    assert read("watermaster.task=a b,watermaster.run=r1,x=a b").passed_over == (
        "watermaster.task",
    )
    assert read("watermaster.attempt", "watermaster.run=%ff").passed_over == (
        "watermaster.attempt",
        "watermaster.run",
    )
    assert read("watermaster.task=a b", task="mine").passed_over == ()  # which nobody asked for
    assert read("watermaster.task=t1,watermaster.tasks=a b,=%%;").passed_over == ()


def test_malformed_members_leave_the_others_alone():
    assert carried("watermaster.task=a b,watermaster.run=r1,;;") == (None, "r1", None)
