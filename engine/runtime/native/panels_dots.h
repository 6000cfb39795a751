// Keys and values in panels as packed.h takes them, by AVX-512.
#pragma once

#include "lanes.h"
#include "plane.h"

namespace {

// Exchanges rows and columns of sixteen by sixteen numbers of 32 bits.
inline void transpose(__m512i (&x)[16]) {
  __m512i y[16];
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
  }
}

// Panels of 16 keys for pairs of a head's numbers; keys from `count` on are zero.
inline void pack_keys(const Plane &keys, Index first, Index count, Panel *to) {
  for (Index panel = 0; panel < count; panel += LANES) {
    for (Index i = 0; i < keys.dim; i += 32) {
      __m512i x[16];
      for (Index k = 0; k < LANES; ++k) {
        x[k] = panel + k < count ? _mm512_loadu_si512(keys.at(first + panel + k) + i)
                                 : _mm512_setzero_si512();
      }
      transpose(x);
      for (Index k = 0; k < LANES; ++k) {
        _mm512_store_si512(to + panel * keys.dim + (i / 2 + k) * 2 * LANES, x[k]);
      }
    }
  }
}

// Panels of 16 numbers of a head for pairs of keys, `padded` of which are made.
inline void pack_values(const Plane &values, Index first, Index count, Index padded, Panel *to) {
  alignas(64) uint16_t order[2][32];
  for (int i = 0; i < 32; ++i) {
    order[0][i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    order[1][i] = static_cast<uint16_t>(i / 2 + i % 2 * 32 + 16);
  }
  const __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
  for (Index k = 0; k < padded; k += 2) {
    for (Index i = 0; i < values.dim; i += 32) {
      const __m512i zero = _mm512_setzero_si512();
      const __m512i a = k < count ? _mm512_loadu_si512(values.at(first + k) + i) : zero;
      const __m512i b = k + 1 < count ? _mm512_loadu_si512(values.at(first + k + 1) + i) : zero;
      _mm512_store_si512(to + i * padded + k * LANES, _mm512_permutex2var_epi16(a, low, b));
      _mm512_store_si512(to + (i + LANES) * padded + k * LANES,
                         _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

}  // namespace
