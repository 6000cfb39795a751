// Attention of rows of several positions, in tiles of queries by tiles of keys.
//
// Both products are those of packed.h: the keys of a tile become panels for the scores, its values
// for the sums. The softmax runs along as in attention.h, after Milakov and Gimelshein (2018).
#pragma once

#include "decoding.h"
#include "packed.h"
#ifdef DOTS
#include "panels_dots.h"
#else
#include "panels_floats.h"
#endif

namespace {

constexpr Index TILE_ROWS = 192;  // positions times the query heads that share a KV head
constexpr Index TILE_KEYS = 128;

struct Tile {
  alignas(64) Number query[TILE_ROWS * MOST_DIM], weight[TILE_ROWS * TILE_KEYS];
  alignas(64) Panel keys[TILE_KEYS * MOST_DIM], values[TILE_KEYS * MOST_DIM];
  alignas(64) float score[TILE_ROWS * TILE_KEYS], sum[TILE_ROWS * MOST_DIM];
  float largest[TILE_ROWS], total[TILE_ROWS], shrink[TILE_ROWS];
};

// Turns a row's scores into weights, zero from `visible` to `padded`.
inline void tile_weights(Tile &tile, Index row, Index visible, Index padded) {
  const float *score = tile.score + row * TILE_KEYS;
  Number *weight = tile.weight + row * TILE_KEYS;
  tile.shrink[row] = 1.0f;
  const Index seen = std::max<Index>(visible, 0), whole = (seen + 15) / 16 * 16;
  if (seen > 0) {
    tile.shrink[row] =
        span_weights(score, seen, weight, tile.largest[row], tile.total[row]);
  }
  std::memset(weight + whole, 0, (padded - whole) * sizeof(Number));
}

// Scores, weights and sums of `rows` rows with the keys [first, first + count). Row r belongs to
// the position `position` + r / group, which sees the keys up to itself.
inline void tile_keys(Tile &tile, Index rows, Index group, Index position, Index first, Index count,
                      const Plane &keys, const Plane &values, float scale) {
  const Index dim = keys.dim, padded = (count + COLUMNS - 1) / COLUMNS * COLUMNS;
  pack_keys(keys, first, count, tile.keys);
  for (Index k = 0; k < padded; k += COLUMNS) {
    if (k + LANES >= count) {
      std::memset(tile.keys + (k + LANES) * dim, 0, LANES * dim * sizeof(Panel));
    }
    many_rows<Panel>(rows, tile.query, dim, tile.keys + k * dim, dim / 2, nullptr,
                     [&](Index row, Lanes low, Lanes high) {
                       float *to = tile.score + row * TILE_KEYS + k;
                       put(to, low * every(scale));
                       put(to + LANES, high * every(scale));
                     });
  }
  for (Index row = 0; row < rows; ++row) {
    tile_weights(tile, row, std::min(count, position + row / group + 1 - first), padded);
  }
  pack_values(values, first, count, padded, tile.values);
  for (Index i = 0; i < dim; i += COLUMNS) {
    many_rows<Panel>(rows, tile.weight, TILE_KEYS, tile.values + i * padded, padded / 2, nullptr,
                     [&](Index row, Lanes low, Lanes high) {
                       float *to = tile.sum + row * dim + i;
                       const Lanes shrink = every(tile.shrink[row]);
                       put(to, lanes_at(to) * shrink + low);
                       put(to + LANES, lanes_at(to + LANES) * shrink + high);
                     });
  }
}

// Positions [start, start + count) of one sequence and the query heads of one KV head. `x` is the
// first position's row of [.., width, dim], `out` its row of [.., heads * dim].
inline void attend_tile(const Number *x, const bf16 *cache, const int32_t *table, Index start,
                        Index count, Index kv_head, const Layout &is, Number *out) {
  static thread_local const std::unique_ptr<Tile> kept(new Tile);
  Tile &tile = *kept;
  const Index group = is.heads / is.kv_heads, dim = is.dim, rows = count * group;
  for (Index i = 0; i < count; ++i) {
    std::memcpy(tile.query + i * group * dim, x + (i * is.width + kv_head * group) * dim,
                group * dim * sizeof(Number));
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
    Number *to = out + (i * is.heads + head) * dim;
    const float share = 1.0f / tile.total[row];
#pragma omp simd
    for (Index j = 0; j < dim; ++j) store(to + j, tile.sum[row * dim + j] * share);
  }
}

}  // namespace
