// Lanes by the bfloat16 dot products of AVX-512: a pair of inputs at a time.
#pragma once

#include <immintrin.h>

#include "numbers.h"

namespace {

using Number = bf16;
using Lanes = __m512;
using Panel = bf16;        // what keys, values and weights in blocks become
using Weights = __m512bh;  // of LANES outputs for a pair of inputs
using Inputs = __m512bh;   // the pair, for all outputs

constexpr Index LANES = 16;
constexpr int HALVES = 1;             // of a pair, each multiplied on its own
constexpr Index MOST_ROWS = 12;       // rows whose sums are kept in registers: 24 of 32
constexpr Index FEW_ROWS = 8;         // rows that are multiplied while weights are unpacked
constexpr Index ROWS_TOGETHER = 192;  // rows of one item: what they read stays in the second cache

inline Weights weights_at(const bf16 *at, int) { return (__m512bh)_mm512_loadu_si512(at); }

inline Inputs inputs_at(const char *at, int) {
  int32_t pair;
  std::memcpy(&pair, at, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

inline Lanes multiply_add(Lanes sum, Weights weights, Inputs inputs) {
  return _mm512_dpbf16_ps(sum, weights, inputs);
}

inline Lanes every(float value) { return _mm512_set1_ps(value); }
inline Lanes lanes_at(const float *at) { return _mm512_loadu_ps(at); }

inline void put(float *to, Lanes x) { _mm512_storeu_ps(to, x); }

inline void put(bf16 *to, Lanes x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), (__m256i)_mm512_cvtneps_pbh(x));
}

inline void put(bf16 *to, Lanes low, Lanes high) {
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

inline void put(bf16 *to, Weights x) { _mm512_storeu_si512(to, (__m512i)x); }

// A NaN is kept if it is the second.
inline Lanes larger(Lanes x, Lanes y) { return _mm512_max_ps(x, y); }

// The first `count` of x, and of `rest` what is beyond.
inline Lanes first_lanes(Index count, Lanes x, Lanes rest) {
  const auto mask = static_cast<__mmask16>(count >= LANES ? 0xffff : (1 << count) - 1);
  return _mm512_mask_mov_ps(rest, mask, x);
}

inline float largest_lane(Lanes x) { return _mm512_reduce_max_ps(x); }
inline float total_of(Lanes x) { return _mm512_reduce_add_ps(x); }

inline Lanes nearest_whole(Lanes x) { return _mm512_roundscale_ps(x, 0); }

// x * 2 ** power, of whole powers.
inline Lanes times_power(Lanes x, Lanes power) { return _mm512_scalef_ps(x, power); }

}  // namespace
