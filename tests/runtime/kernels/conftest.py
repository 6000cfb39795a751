"""Kernels run under Triton's interpreter here. It must be chosen before they are defined."""

import importlib.util
import os

os.environ.setdefault("TRITON_INTERPRET", "1")

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_*.py"]
