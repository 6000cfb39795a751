"""What the garbage collector need not look at again."""

import gc

from gateway import heap


def test_what_lives_as_long_as_the_process_is_out_of_later_collections():
    before = gc.get_threshold()
    gc.unfreeze()  # what the test run has kept out itself
    try:
        heap.settle()
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold() == heap.THRESHOLDS
        assert len(gc.get_objects()) < 10_000
    finally:
        gc.set_threshold(*before)
