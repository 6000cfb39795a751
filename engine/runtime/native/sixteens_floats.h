// Sixteen keys or values of one head at a time, by the float32 multiply-adds of AVX2.
//
// Each sixteen numbers of a head are taken as the eight at even places and the eight at odd ones,
// which a shift and a mask make of bfloat16.
#pragma once

#include "lanes.h"

namespace {

constexpr Index SPAN = 64;  // keys between two looks at the largest score

// Queries whose sums of 32 numbers are in registers together: 12 of 16.
template <Index DIM>
constexpr Index TOGETHER = 3;

// A query as `sixteen_scores` takes it.
template <Index DIM>
inline void arrange(const float *from, float *to) {
  for (Index i = 0; i < DIM; i += 16) {
    for (Index j = 0; j < LANES; ++j) {
      to[i + j] = from[i + 2 * j];
      to[i + LANES + j] = from[i + 2 * j + 1];
    }
  }
}

// What `sixteen_values` summed up, over the total of weights.
template <Index DIM>
inline void restore(const float *sum, float total, float *out) {
  const float share = 1.0f / total;
  for (Index i = 0; i < DIM; i += 16) {
    for (Index j = 0; j < LANES; ++j) {
      out[i + 2 * j] = sum[i + j] * share;
      out[i + 2 * j + 1] = sum[i + LANES + j] * share;
    }
  }
}

// Sums of eight vectors of eight, in order.
inline __m256 sums_of(const __m256 (&x)[8]) {
  __m256 y[4], z[2];
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]) + _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    z[i] = _mm256_shuffle_ps(y[2 * i], y[2 * i + 1], 0x44) +
           _mm256_shuffle_ps(y[2 * i], y[2 * i + 1], 0xee);
  }
  return _mm256_permute2f128_ps(z[0], z[1], 0x20) + _mm256_permute2f128_ps(z[0], z[1], 0x31);
}

// score[k] = the dots of one query with sixteen keys, times the scale.
template <Index DIM>
inline void sixteen_scores(const float *query, const bf16 *keys, float scale, float *score) {
  for (Index first = 0; first < 16; first += LANES) {
    __m256 parts[LANES];
#pragma GCC unroll 8
    for (Index k = 0; k < LANES; ++k) {
      const bf16 *key = keys + (first + k) * DIM;
      parts[k] = every(0.0f);
#pragma GCC unroll 8
      for (Index i = 0; i < DIM; i += 16) {
        parts[k] = multiply_add(parts[k], weights_at(key + i, 0), lanes_at(query + i));
        parts[k] = multiply_add(parts[k], weights_at(key + i, 1), lanes_at(query + i + LANES));
      }
    }
    put(score + first, sums_of(parts) * every(scale));
  }
}

// sum[q] += weight[q] . values for QUERIES queries, whose weights are `stride` apart, and the first
// `count` of sixteen keys.
template <Index DIM, int QUERIES>
inline void sixteen_values(const bf16 *values, Index count, const float *weight, Index stride,
                           float *sum) {
  constexpr int PARTS = 4;  // of 32 numbers
  for (Index i = 0; i < DIM; i += PARTS * LANES) {
    __m256 total[QUERIES][PARTS];
#pragma GCC unroll 3
    for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; ++p) total[q][p] = lanes_at(sum + q * DIM + i + p * LANES);
    }
    for (Index k = 0; k < count; ++k) {
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; ++p) {
        const __m256 value = weights_at(values + k * DIM + i + p / 2 * 16, p % 2);
#pragma GCC unroll 3
        for (int q = 0; q < QUERIES; ++q) {
          total[q][p] = multiply_add(total[q][p], value, every(weight[q * stride + k]));
        }
      }
    }
#pragma GCC unroll 3
    for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; ++p) put(sum + q * DIM + i + p * LANES, total[q][p]);
    }
  }
}

}  // namespace
