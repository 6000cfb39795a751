"""A simulated model that answers at once, and the loads that measure the gateway with it."""

import asyncio
import os

import numpy as np
import pytest

from engine.core.plan import Join, Sampling
from engine.sim.instant import ArbitraryTokens
from loadgen import http_load
from loadgen.gateway_bench import Pair, Target, bare_server, findings
from loadgen.http_load import NUMBER, Load, Requests


def joined(slot: int, seed: int) -> Join:
    prompt = np.array([11, 12], np.int32)
    return Join(slot, 1, prompt, 2, np.array([0], np.int32), Sampling(seed=seed))


def test_tokens_depend_on_the_request_and_the_index_alone():
    one, other = ArbitraryTokens(1000, 8), ArbitraryTokens(1000, 8)
    one.join(joined(0, 5))
    one.join(joined(3, 6))
    other.join(joined(7, 5))
    slots = np.array([0, 0, 3], np.int32)
    tokens = one.draw(slots, np.array([0, 40, 0], np.int32))
    again = other.draw(np.array([7, 7], np.int32), np.array([0, 40], np.int32))
    assert tokens[:2].tolist() == again.tolist()
    assert tokens[2] != tokens[0]
    many = one.draw(np.zeros(600, np.int32), np.arange(600, dtype=np.int32))
    assert many.dtype == np.int32
    assert (many.min() >= 500, many.max() < 1000) == (True, True)
    assert len(set(many.tolist())) == 500


def test_shares_and_added_times_are_relative_to_the_bare_endpoint():
    bare, full = Load(100, 120, 1000.0, 1.0, 2.0), Load(100, 120, 250.0, 4.0, 8.0)
    pair = Pair("x", 64, [bare], [full])
    assert pair.shares() == [25.0]
    assert pair.added_p99() == [6.0]
    assert pair.added_to_a_token() == [pytest.approx(1e6 / 256 * 0.003)]
    kept = [finding.kept for finding in findings([pair] * 4)]
    assert kept == [False, False, True, False, True]


def test_no_request_is_sent_twice_and_all_have_the_length_they_tell():
    order = {"path": "/x", "headers": {"a": "b"}, "body": f'{{"text": "{NUMBER}"}}'}
    requests = Requests(order)
    heads, bodies = zip(*(requests.next().split(b"\r\n\r\n") for _ in range(3)), strict=True)
    assert bodies == tuple(b'{"text": "%08d"}' % number for number in range(3))
    assert len(set(heads)) == 1
    assert b"content-length: 20" in heads[0]


@pytest.mark.server
def test_every_complete_answer_is_counted_once_and_a_refusal_ends_the_load():
    with bare_server() as bare:
        found = Target(*bare, "/json", {}, {"answer": {"text": "x" * 5000}}).load(4, 0.3)
        assert found.answers > 4
        assert found.rate == pytest.approx(found.answers / 0.3, rel=0.5)
        assert 0 < found.p50 <= found.p99
        assert found.answers <= found.all_answers
        assert found.cpu * found.all_answers < 1e6 * 2 * os.cpu_count()  # it took less than 2 s
        events = Target(*bare, "/sse", {}, {"event": '{"a": "b"}', "times": 20}).load(2, 0.3)
        assert events.answers > 2
        order = {"port": bare.port, "path": "/absent", "headers": {}, "body": "{}"}
        with pytest.raises(ConnectionError, match="404"):
            asyncio.run(http_load.run({**order, "clients": 1, "seconds": 0.2, "warm_up": 0}))
