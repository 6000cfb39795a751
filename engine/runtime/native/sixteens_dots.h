// Sixteen keys or values of one head at a time, by the bfloat16 dot products of AVX-512.
#pragma once

#include "lanes.h"

namespace {

constexpr Index SPAN = 64;  // keys between two looks at the largest score

// Queries whose sums are in registers together.
template <Index DIM>
constexpr Index TOGETHER = DIM == 64 ? 4 : 2;

// A query as `sixteen_scores` takes it.
template <Index DIM>
inline void arrange(const bf16 *from, bf16 *to) {
  std::memcpy(to, from, DIM * sizeof(bf16));
}

// What `sixteen_values` summed up, over the total of weights.
template <Index DIM>
inline void restore(const float *sum, float total, bf16 *out) {
  for (Index i = 0; i < DIM; ++i) store(out + i, sum[i] / total);
}

// Sums of sixteen vectors of sixteen, in order: each level adds halves of two vectors into one.
inline __m512 sums_of(const __m512 (&x)[16]) {
  __m512 y[8], z[4];
  for (int i = 0; i < 8; ++i) {
    y[i] = _mm512_shuffle_f32x4(x[i], x[i + 8], 0x44) + _mm512_shuffle_f32x4(x[i], x[i + 8], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    z[i] = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88) + _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
  }
  const __m512 low = _mm512_unpacklo_ps(z[0], z[1]) + _mm512_unpackhi_ps(z[0], z[1]);
  const __m512 high = _mm512_unpacklo_ps(z[2], z[3]) + _mm512_unpackhi_ps(z[2], z[3]);
  const __m512 sums = _mm512_shuffle_ps(low, high, 0x44) + _mm512_shuffle_ps(low, high, 0xee);
  return _mm512_shuffle_f32x4(sums, sums, 0xd8);
}

// score[k] = the dots of one query with sixteen keys, times the scale.
template <Index DIM>
inline void sixteen_scores(const bf16 *query, const bf16 *keys, float scale, float *score) {
  __m512 parts[16];
#pragma GCC unroll 16
  for (int k = 0; k < 16; ++k) {
    parts[k] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (Index i = 0; i < DIM; i += 32) {
      const __m512i a = _mm512_loadu_si512(query + i), b = _mm512_loadu_si512(keys + k * DIM + i);
      parts[k] = _mm512_dpbf16_ps(parts[k], (__m512bh)a, (__m512bh)b);
    }
  }
  _mm512_storeu_ps(score, _mm512_mul_ps(sums_of(parts), _mm512_set1_ps(scale)));
}

// Numbers of two keys' values in turns: of the first half of 32, and of the second.
struct Turns {
  alignas(64) uint16_t low[32], high[32];
  constexpr Turns() : low(), high() {
    for (int i = 0; i < 32; ++i) {
      low[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
      high[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32 + 16);
    }
  }
};
constexpr Turns TURNS;

// sum[q] += weight[q] . values for QUERIES queries, whose weights are `stride` apart, and the first
// `count` of sixteen keys, two keys at a time.
template <Index DIM, int QUERIES>
inline void sixteen_values(const bf16 *values, Index count, const bf16 *weight, Index stride,
                           float *sum) {
  const __m512i low = _mm512_load_si512(TURNS.low), high = _mm512_load_si512(TURNS.high);
  constexpr Index PARTS = DIM / 16;
  __m512 total[QUERIES][PARTS];
#pragma GCC unroll 4
  for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 8
    for (Index i = 0; i < PARTS; ++i) total[q][i] = _mm512_loadu_ps(sum + q * DIM + 16 * i);
  }
  for (Index k = 0; k < count; k += 2) {
    const __mmask16 both = k + 1 < count ? 0xffff : 0;  // what lies beyond may be anything
    __m512bh pairs[PARTS];
#pragma GCC unroll 4
    for (Index i = 0; i < PARTS; i += 2) {
      const __m512i a = _mm512_loadu_si512(values + k * DIM + 16 * i);
      const __m512i b = _mm512_maskz_loadu_epi32(both, values + (k + 1) * DIM + 16 * i);
      pairs[i] = (__m512bh)_mm512_permutex2var_epi16(a, low, b);
      pairs[i + 1] = (__m512bh)_mm512_permutex2var_epi16(a, high, b);
    }
#pragma GCC unroll 4
    for (int q = 0; q < QUERIES; ++q) {
      int32_t pair;
      std::memcpy(&pair, weight + q * stride + k, sizeof pair);
      const __m512bh two = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (Index i = 0; i < PARTS; ++i) total[q][i] = _mm512_dpbf16_ps(total[q][i], pairs[i], two);
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 8
    for (Index i = 0; i < PARTS; ++i) _mm512_storeu_ps(sum + q * DIM + 16 * i, total[q][i]);
  }
}

}  // namespace
