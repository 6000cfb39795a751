"""The asynchronous fake device: late and in any order, but never against its own rules."""

from functools import partial

import pytest
import torch

from engine.runtime.gpu.fake import FakeDevice

SEEDS = range(40)


def test_work_is_done_in_order_and_at_the_latest_when_waited_for():
    pending = set()
    for seed in SEEDS:
        queue, done = FakeDevice(seed).queue(), []
        for number in range(3):
            queue.run(partial(done.append, number))
        pending.add(3 - len(done))
        queue.mark().wait()
        assert done == [0, 1, 2]
    assert pending == {0, 1, 2, 3}


def test_queues_run_against_each_other_in_any_order_that_marks_allow():
    orders = set()
    for seed in SEEDS:
        device, done = FakeDevice(seed), []
        one, other = device.queue(), device.queue()
        one.run(partial(done.append, "a"))
        one.run(partial(done.append, "b"))
        middle = one.mark()
        one.run(partial(done.append, "c"))
        other.run(partial(done.append, "x"))
        other.after(middle)
        other.run(partial(done.append, "y"))
        for queue in (one, other):
            queue.mark().wait()
        assert done.index("y") > done.index("b")
        orders.add("".join(done))
    assert {"abcxy", "abxyc", "xabcy"} <= orders


def test_memory_that_is_written_again_too_early_shows():
    read = set()
    for seed in SEEDS:
        device = FakeDevice(seed)
        queue, pinned, there = device.queue(), device.pinned(1, torch.int32), torch.zeros(1)
        pinned[0] = 1
        queue.run(lambda pinned=pinned, there=there: there.copy_(pinned))
        pinned[0] = 2
        queue.mark().wait()
        read.add(int(there))
    assert read == {1, 2}


def test_without_a_seed_everything_is_done_at_once():
    queue, done = FakeDevice().queue(), []
    queue.run(lambda: done.append(1))
    assert done == [1]


def test_a_fault_is_final():
    queue = FakeDevice().queue()

    def fail():
        raise ValueError("lost")

    queue.run(fail)
    with pytest.raises(ValueError, match="lost"):
        queue.mark().wait()
    with pytest.raises(ValueError, match="lost"):
        queue.mark().wait()


def test_a_graph_reads_anew_and_overwrites_what_it_gave_before():
    source, given = torch.ones(2), []
    device = FakeDevice()
    graph, queue = device.capture(lambda: source * 2), device.queue()
    queue.run(lambda: given.append(graph()))
    assert given[0].tolist() == [2, 2]
    source.fill_(5)
    queue.run(lambda: given.append(graph()))
    assert given[1] is given[0]
    assert given[0].tolist() == [10, 10]


def test_marks_tell_the_time_between_them():
    queue = FakeDevice(3).queue()
    earlier, later = queue.mark(), queue.mark()
    later.wait()
    assert later.nanoseconds_since(earlier) >= 0
