// Lanes by the float32 multiply-adds of AVX2. Weights become float32 on the way from memory, each
// pair of inputs in two halves: one is a shift, the other a mask, which other units do meanwhile.
#pragma once

#include <immintrin.h>

#include "numbers.h"

namespace {

using Number = float;
using Lanes = __m256;
using Panel = float;     // what keys and values become, and weights for many rows
using Weights = __m256;  // of LANES outputs for one of a pair of inputs
using Inputs = __m256;   // that input, for all outputs

constexpr Index LANES = 8;
constexpr int HALVES = 2;             // of a pair, each multiplied on its own
constexpr Index MOST_ROWS = 6;        // rows whose sums are kept in registers: 12 of 16
constexpr Index ROWS_TOGETHER = 192;  // rows of one item, for which weights become float32 once

inline Weights weights_at(const bf16 *at, int half) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at));
  return _mm256_castsi256_ps(half == 0 ? _mm256_slli_epi32(pairs, 16)
                                       : _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}

inline Weights weights_at(const float *at, int half) { return _mm256_loadu_ps(at + half * LANES); }

inline Inputs inputs_at(const char *at, int half) {
  return _mm256_broadcast_ss(reinterpret_cast<const float *>(at) + half);
}

inline Lanes multiply_add(Lanes sum, Weights weights, Inputs inputs) {
  // else the compiler puts sums where inputs were, and then has no registers left for all of them
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(inputs));
  return sum;
}

inline Lanes every(float value) { return _mm256_set1_ps(value); }
// LANES numbers of 16 bits.
inline Lanes halfs_at(const uint16_t *at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
}

inline Lanes lanes_at(const float *at) { return _mm256_loadu_ps(at); }

inline void put(float *to, Lanes x) { _mm256_storeu_ps(to, x); }

inline void put(float *to, Lanes low, Lanes high) {
  put(to, low);
  put(to + LANES, high);
}

// As `store` of numbers.h.
inline void put(bf16 *to, Lanes x) {
  const __m256i wide = _mm256_castps_si256(x), top = _mm256_srli_epi32(wide, 16);
  const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(wide, half), 16);
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i bits = _mm256_blendv_epi8(rounded, quiet, nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm256_castsi256_si128(packed));
}

inline void put(bf16 *to, Lanes low, Lanes high) {
  put(to, low);
  put(to + LANES, high);
}

// A NaN is kept if it is the second.
inline Lanes larger(Lanes x, Lanes y) { return _mm256_max_ps(x, y); }

// The first `count` of x, and of `rest` what is beyond.
inline Lanes first_lanes(Index count, Lanes x, Lanes rest) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(std::min(count, LANES)));
  return _mm256_blendv_ps(rest, x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, places)));
}

inline float largest_lane(Lanes x) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

inline float total_of(Lanes x) {
  __m128 sum = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
  sum += _mm_movehl_ps(sum, sum);
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

inline Lanes nearest_whole(Lanes x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// x * 2 ** power, of whole powers from -126 on, for x and results that are normal numbers; of powers
// above 127 that of 127.
inline Lanes times_power(Lanes x, Lanes power) {
  const __m256i whole = _mm256_cvtps_epi32(_mm256_min_ps(every(127.0f), power));
  const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(whole, 23));
  return _mm256_castsi256_ps(bits);
}

}  // namespace
