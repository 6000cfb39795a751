"""Step times, by hand."""

import json

import numpy as np
import pytest

from engine.sim.fitted import FittedProfile, Piece, ProfileFileError, dump_fitted, load_fitted
from engine.sim.jitter import JitteredProfile
from engine.sim.profile import A10G_LLAMA2_7B, HostLink, LinearProfile, StepShape
from engine.sim.profiles import profile_named
from engine.sim.roofline import H100_8B, H200_8B, LLAMA3_8B
from loadgen.device import Device
from loadgen.tables import ScenarioError


def ms(profile, **shape) -> float:
    return profile.duration(StepShape(**shape)) / 1e6


def test_the_a10g_profile_adds_decode_and_prefill_and_counts_the_intercept_once():
    decode = {"decode_sequences": 10, "context_tokens": 5000}
    assert ms(A10G_LLAMA2_7B, **decode) == pytest.approx(16.295 + 2.45 + 10.09 + 2, abs=1e-5)
    assert ms(A10G_LLAMA2_7B, prefill_tokens=100) == pytest.approx(35.84 + 21.314 + 2, abs=1e-5)
    mixed = ms(A10G_LLAMA2_7B, prefill_tokens=100, **decode)
    assert mixed == pytest.approx(16.295 + 2.45 + 10.09 + 35.84 + 21.314 + 2, abs=1e-5)
    saving = Device(mixed_saving_ms=16.295).noise_free()
    assert ms(saving, prefill_tokens=100, **decode) == pytest.approx(mixed - 16.295, abs=1e-5)
    assert ms(saving, **decode) == pytest.approx(16.295 + 2.45 + 10.09 + 2, abs=1e-5)


def test_a_swap_hides_behind_compute_or_comes_before_it():
    # 1,000 tokens of 512 KiB at 12 GB/s take 43.69 ms; a decode step of one takes 16.54 ms.
    moving = 1e3 * 1000 * 524_288 / 12e9
    decode = {"decode_sequences": 1, "context_tokens": 0}
    alone = 16.295 + 0.245
    assert ms(A10G_LLAMA2_7B, tokens_out=1000, **decode) == pytest.approx(moving + 2, abs=1e-5)
    assert ms(A10G_LLAMA2_7B, tokens_out=100, **decode) == pytest.approx(alone + 2, abs=1e-5)
    both = ms(A10G_LLAMA2_7B, tokens_out=1000, tokens_in=900, **decode)
    assert both == pytest.approx(moving + 2, abs=1e-5)  # each direction at full rate
    serial = Device(swap_overlap=False).noise_free()
    assert ms(serial, tokens_in=1000, **decode) == pytest.approx(alone + moving + 2, abs=1e-5)


def test_the_geometry_of_an_8b_model():
    assert LLAMA3_8B.kv_bytes_per_token == 131_072
    assert LLAMA3_8B.layer_parameters == 32 * (2 * 4096 * 128 * 40 + 3 * 4096 * 14336)
    assert LLAMA3_8B.attention_flops == 4 * 32 * 4096


def test_a_roofline_step_is_bound_by_memory_when_decoding_and_by_compute_when_prefilling():
    weights = 2 * (LLAMA3_8B.layer_parameters + LLAMA3_8B.head_parameters)
    decode = ms(H100_8B, decode_sequences=1, context_tokens=1000)
    memory = 1e3 * (weights + 1000 * 131_072) / (3.35e12 * 0.8)
    assert decode == pytest.approx(memory + 1, rel=1e-6)
    faster = ms(H200_8B, decode_sequences=1, context_tokens=1000)
    assert (decode - 1) / (faster - 1) == pytest.approx(4.8 / 3.35, rel=1e-5)
    pairs = 4096 * 4097 // 2
    operations = 2 * (4096 * LLAMA3_8B.layer_parameters + LLAMA3_8B.head_parameters)
    operations += LLAMA3_8B.attention_flops * pairs
    prefill = ms(H100_8B, prefill_tokens=4096, prefill_context=pairs)
    assert prefill == pytest.approx(1e3 * operations / (989e12 * 0.6) + 1, rel=1e-6)


def test_jitter_has_the_stated_spread_and_follows_the_seed():
    flat = LinearProfile(0, 0, 0, 0, 0, overhead=100.0)
    shape = StepShape(decode_sequences=1)
    draws = [
        [profile.duration(shape) for _ in range(5000)]
        for profile in (JitteredProfile(flat, 0.03, seed) for seed in (1, 1, 2))
    ]
    assert draws[0] == draws[1] != draws[2]
    assert np.mean(draws[0]) == pytest.approx(100e6, rel=0.002)
    assert np.std(draws[0]) == pytest.approx(3e6, rel=0.05)


def test_a_fitted_profile_survives_its_file_and_takes_the_larger_piece(tmp_path):
    memory = Piece(5.0, 0.0, 0.0, 0.1, 0.001)
    compute = Piece(0.0, 0.05, 0.00001, 0.05, 0.0)
    profile = FittedProfile((memory, compute), 1.5, HostLink(1e9, 1000, overlap=False))
    path = tmp_path / "cpu.json"
    dump_fitted(profile, path, {"machine": "test"})
    assert load_fitted(path) == profile_named(str(path)) == profile
    assert ms(profile, decode_sequences=10, context_tokens=1000) == pytest.approx(5 + 1 + 1 + 1.5)
    assert ms(profile, prefill_tokens=1000) == pytest.approx(50 + 1.5)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "wrong form"),
        (json.dumps({"pieces": []}), "no pieces"),
        (json.dumps({"pieces": [{"bose": 1}]}), "unknown coefficient 'bose'"),
        (json.dumps({"pieces": [{"base": 1}], "link": {"speed": 1}}), "wrong form"),
    ],
)
def test_a_bad_profile_file_is_named_with_its_fault(tmp_path, content, complaint):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ProfileFileError, match=complaint):
        load_fitted(path)


def test_unknown_profiles_and_impossible_changes_are_refused():
    with pytest.raises(ScenarioError, match=r"known are a10g-llama2-7b, h100-8b"):
        Device(profile="tpu").noise_free()
    with pytest.raises(ScenarioError, match=r"cannot read profile .*none\.json"):
        Device(profile="/none.json").noise_free()
    with pytest.raises(ScenarioError, match="mixed_saving_ms does not apply to h100-8b"):
        Device(profile="h100-8b", mixed_saving_ms=1.0).noise_free()
