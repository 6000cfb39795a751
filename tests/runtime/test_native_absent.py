"""Where the C++ cannot be built, torch computes."""

import logging

import pytest
import torch

from engine.runtime.attention import GatherAttention
from engine.runtime.kv_cache import KVCache
from engine.runtime.native import library
from engine.runtime.native.attention import make_attention
from engine.runtime.native.library import BuildError, build, kernels_for
from engine.runtime.operators import TorchOperators, make_operators
from tests.runtime.driver import TINY

CPU = torch.device("cpu")


def test_without_a_compiler_torch_computes_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"none of the compilers c\+\+, g\+\+, clang\+\+"):
        build(tmp_path / "new")
    monkeypatch.setenv("WATERMASTER_CACHE", str(tmp_path / "empty"))
    library._library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "watermaster.engine"):
            assert kernels_for(torch.float32) is None
            assert kernels_for(torch.bfloat16) is None
        assert len(caplog.records) == 1
        assert isinstance(make_operators(TINY, torch.float32, CPU), TorchOperators)
        cache = KVCache(TINY, 1, 16, torch.float32, CPU)
        assert isinstance(make_attention(TINY, cache), GatherAttention)
    finally:
        library._library.cache_clear()


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(BuildError, match="failed: no such option"):
        build(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
