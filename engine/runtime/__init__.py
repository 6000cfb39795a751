"""Models on torch.

Torch's CPU threads wait for each other by spinning. On cores shared with an event loop or anything
else, a thread that lost its core keeps the others spinning for a whole time slice, and a step takes
several times as long. A short spin, then sleep, costs nothing on idle cores; libgomp reads the
variable when torch is loaded.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
