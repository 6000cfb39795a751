// Keys and values in panels as packed.h takes them.
#pragma once

#include "lanes.h"
#include "plane.h"

namespace {

inline __m256 widened(const bf16 *at) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// Row i of eight rows becomes column i.
inline void transpose(__m256 (&x)[LANES]) {
  __m256 y[LANES], z[LANES];
  for (Index i = 0; i < LANES; i += 2) {
    y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (Index i = 0; i < LANES; i += 4) {
    for (Index j = 0; j < 2; ++j) {
      z[i + 2 * j] = _mm256_shuffle_ps(y[i + j], y[i + j + 2], 0x44);
      z[i + 2 * j + 1] = _mm256_shuffle_ps(y[i + j], y[i + j + 2], 0xee);
    }
  }
  for (Index i = 0; i < LANES / 2; ++i) {
    x[i] = _mm256_permute2f128_ps(z[i], z[i + 4], 0x20);
    x[i + 4] = _mm256_permute2f128_ps(z[i], z[i + 4], 0x31);
  }
}

// Panels of LANES keys for all numbers of a head; keys from `count` on are zero.
inline void pack_keys(const Plane &keys, Index first, Index count, Panel *to) {
  for (Index panel = 0; panel < count; panel += LANES) {
    const bf16 *key[LANES];
    for (Index k = 0; k < LANES; ++k) {
      key[k] = panel + k < count ? keys.at(first + panel + k) : nullptr;
    }
    for (Index i = 0; i < keys.dim; i += LANES, to += LANES * LANES) {
      __m256 numbers[LANES];
      for (Index k = 0; k < LANES; ++k) {
        numbers[k] = key[k] == nullptr ? every(0.0f) : widened(key[k] + i);
      }
      transpose(numbers);
      for (Index j = 0; j < LANES; ++j) put(to + j * LANES, numbers[j]);
    }
  }
}

// Panels of LANES numbers of a head for all keys, `padded` of which are made.
inline void pack_values(const Plane &values, Index first, Index count, Index padded, Panel *to) {
  for (Index k = 0; k < padded; ++k, to += LANES) {
    const bf16 *value = k < count ? values.at(first + k) : nullptr;
    for (Index i = 0; i < values.dim; i += LANES) {
      put(to + i * padded, value == nullptr ? every(0.0f) : widened(value + i));
    }
  }
}

}  // namespace
