"""What the garbage collector need not look at again.

A full collection visits every object: with the model's libraries loaded that is hundreds of
milliseconds in which neither the event loop nor the engine thread does anything.
"""

import gc

# Allocations before a young collection, young ones before a middle one, and middle ones before a
# full one: a request makes thousands of objects, hardly any in cycles.
THRESHOLDS = (20_000, 20, 50)


def settle() -> None:
    """Keep all there is now out of later collections, and make full ones rarer.

    Call it once, when everything that lives as long as the process is there.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
