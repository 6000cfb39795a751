// Attention of rows of several positions, in tiles of queries by tiles of keys.
//
// Both products are those of packed.h: the keys of a tile become panels for the scores, its values
// for the sums. The softmax runs along as in attention.h, after Milakov and Gimelshein (2018).
#pragma once

#include "decoding.h"
#include "packed.h"

namespace {

constexpr Index TILE_ROWS = 192;  // positions times the query heads that share a KV head
constexpr Index TILE_KEYS = 128;

struct Tile {
  alignas(64) bf16 query[TILE_ROWS * MOST_DIM], weight[TILE_ROWS * TILE_KEYS];
  alignas(64) bf16 keys[TILE_KEYS * MOST_DIM], values[TILE_KEYS * MOST_DIM];
  alignas(64) float score[TILE_ROWS * TILE_KEYS], sum[TILE_ROWS * MOST_DIM];
  float largest[TILE_ROWS], total[TILE_ROWS], shrink[TILE_ROWS];
};

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

// A sequence's keys or values of one head in one layer, wherever its blocks lie.
struct Plane {
  const bf16 *cache;
  const int32_t *table;
  Index block, planes, plane, dim;
  const bf16 *at(Index position) const {
    const Index cell = (table[position / block] * planes + plane) * block + position % block;
    return cache + cell * dim;
  }
};

// Panels of 16 keys for pairs of a head's numbers; keys from `count` on are zero.
inline void pack_keys(const Plane &keys, Index first, Index count, bf16 *to) {
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
inline void pack_values(const Plane &values, Index first, Index count, Index padded, bf16 *to) {
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

// Turns a row's scores into weights, zero from `visible` to `padded`.
inline void tile_weights(Tile &tile, Index row, Index visible, Index padded) {
  const float *score = tile.score + row * TILE_KEYS;
  bf16 *weight = tile.weight + row * TILE_KEYS;
  tile.shrink[row] = 1.0f;
  const Index seen = std::max<Index>(visible, 0), whole = (seen + 15) / 16 * 16;
  if (seen > 0) {
    tile.shrink[row] =
        span_weights(score, seen, weight, tile.largest[row], tile.total[row]);
  }
  std::memset(weight + whole, 0, (padded - whole) * sizeof(bf16));
}

// Scores, weights and sums of `rows` rows with the keys [first, first + count). Row r belongs to
// the position `position` + r / group, which sees the keys up to itself.
inline void tile_keys(Tile &tile, Index rows, Index group, Index position, Index first, Index count,
                      const Plane &keys, const Plane &values, float scale) {
  const Index dim = keys.dim, padded = (count + 31) / 32 * 32;
  pack_keys(keys, first, count, tile.keys);
  for (Index k = 0; k < padded; k += 32) {
    if (k + LANES >= count) std::memset(tile.keys + (k + LANES) * dim, 0, LANES * dim * 2);
    many_rows(rows, tile.query, dim, tile.keys + k * dim, dim / 2, nullptr,
              [&](Index row, __m512 low, __m512 high) {
                float *to = tile.score + row * TILE_KEYS + k;
                _mm512_store_ps(to, low * _mm512_set1_ps(scale));
                _mm512_store_ps(to + LANES, high * _mm512_set1_ps(scale));
              });
  }
  for (Index row = 0; row < rows; ++row) {
    tile_weights(tile, row, std::min(count, position + row / group + 1 - first), padded);
  }
  pack_values(values, first, count, padded, tile.values);
  for (Index i = 0; i < dim; i += 32) {
    many_rows(rows, tile.weight, TILE_KEYS, tile.values + i * padded, padded / 2, nullptr,
              [&](Index row, __m512 low, __m512 high) {
                float *to = tile.sum + row * dim + i;
                const __m512 shrink = _mm512_set1_ps(tile.shrink[row]);
                _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(to), shrink, low));
                _mm512_store_ps(to + LANES,
                                _mm512_fmadd_ps(_mm512_load_ps(to + LANES), shrink, high));
              });
  }
}

// Positions [start, start + count) of one sequence and the query heads of one KV head. `x` is the
// first position's row of [.., width, dim], `out` its row of [.., heads * dim].
inline void attend_tile(const bf16 *x, const bf16 *cache, const int32_t *table, Index start,
                        Index count, Index kv_head, const Layout &is, bf16 *out) {
  static thread_local const std::unique_ptr<Tile> kept(new Tile);
  Tile &tile = *kept;
  const Index group = is.heads / is.kv_heads, dim = is.dim, rows = count * group;
  for (Index i = 0; i < count; ++i) {
    std::memcpy(tile.query + i * group * dim, x + (i * is.width + kv_head * group) * dim,
                group * dim * sizeof(bf16));
  }
  std::fill(tile.sum, tile.sum + rows * dim, 0.0f);
  std::fill(tile.largest, tile.largest + rows, -INFINITY);
  std::fill(tile.total, tile.total + rows, 0.0f);
  const Plane keys{cache, table, is.block, 2 * is.kv_heads, kv_head, dim};
  const Plane values{cache, table, is.block, 2 * is.kv_heads, is.kv_heads + kv_head, dim};
  for (Index first = 0; first < start + count; first += TILE_KEYS) {
    const Index here = std::min(TILE_KEYS, start + count - first);
    tile_keys(tile, rows, group, start, first, here, keys, values, is.scale);
  }
  for (Index row = 0; row < rows; ++row) {
    const Index i = row / group, head = kv_head * group + row % group;
    bf16 *to = out + (i * is.heads + head) * dim;
    const float share = 1.0f / tile.total[row];
#pragma omp simd
    for (Index j = 0; j < dim; ++j) store(to + j, tile.sum[row * dim + j] * share);
  }
}

}  // namespace
