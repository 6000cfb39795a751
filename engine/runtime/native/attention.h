// Attention of decoding sequences over the paged cache, in place.
#pragma once

#include "numbers.h"

namespace {

constexpr Index MOST_HEADS = 16;   // query heads of one KV head
constexpr Index MOST_DIM = 256;    // of a head
constexpr Index MOST_BLOCK = 256;  // tokens

struct Layout {
  Index heads, kv_heads, dim, block, width, tables;  // width: heads of a row; tables: its blocks
  float scale;
};

template <typename T>
inline void prefetch(const T *from, Index count) {
  for (Index i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
}

// Scores of one block: dots of `group` queries with the block's keys, times the scale.
template <typename Q, typename T>
void block_scores(const Q *queries, const T *keys, Index group, Index dim, Index count, float scale,
                  float (*score)[MOST_BLOCK]) {
  for (Index k = 0; k < count; ++k) {
    for (Index g = 0; g < group; ++g) {
      float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
      for (Index i = 0; i < dim; ++i) dot += load(queries[g * dim + i]) * load(keys[k * dim + i]);
      score[g][k] = dot * scale;
    }
  }
}

// sum[g] = shrink[g] * sum[g] + score[g] . values. With FIXED sizes the sums of a head stay in
// registers over the whole block.
template <typename T, Index FIXED>
void block_values(const T *values, const float (*score)[MOST_BLOCK], const float *shrink,
                  Index group, Index size, Index count, float (*sum)[MOST_DIM]) {
  const Index dim = FIXED ? FIXED : size;
  for (Index g = 0; g < group; ++g) {
    float total[FIXED ? FIXED : MOST_DIM];
#pragma omp simd
    for (Index i = 0; i < dim; ++i) total[i] = sum[g][i] * shrink[g];
    for (Index k = 0; k < count; ++k) {
      const float weight = score[g][k];
#pragma omp simd
      for (Index i = 0; i < dim; ++i) total[i] += weight * load(values[k * dim + i]);
    }
#pragma omp simd
    for (Index i = 0; i < dim; ++i) sum[g][i] = total[i];
  }
}

// Turns one block's scores into weights; keeps the largest score and the total of each query, and
// returns by what earlier sums are to shrink.
inline float block_weights(float *score, Index count, float &largest, float &total) {
  float most = largest;
  for (Index k = 0; k < count; ++k) most = std::max(most, score[k]);
  const float shrink = exp_negative(largest - most);
  float added = 0.0f;
#pragma omp simd reduction(+ : added)
  for (Index k = 0; k < count; ++k) {
    score[k] = exp_negative(score[k] - most);
    added += score[k];
  }
  largest = most;
  total = total * shrink + added;
  return shrink;
}

// One KV head of one sequence, over the blocks of its table, with the online softmax of Milakov and
// Gimelshein (2018): sums so far shrink whenever a larger score appears. FIXED is the head's size
// where the compiler is to know it, and else 0.
template <typename Q, typename T, Index FIXED>
void attend(const Q *queries, const T *cache, const int32_t *table, Index context, Index kv_head,
            const Layout &is, Q *out) {
  const Index group = is.heads / is.kv_heads, dim = FIXED ? FIXED : is.dim, plane = is.block * dim;
  alignas(64) float sum[MOST_HEADS][MOST_DIM], score[MOST_HEADS][MOST_BLOCK];
  float largest[MOST_HEADS], total[MOST_HEADS], shrink[MOST_HEADS];
  const Q *query = queries + kv_head * group * dim;
  for (Index g = 0; g < group; ++g) {
    std::fill(sum[g], sum[g] + dim, 0.0f);
    largest[g] = -INFINITY, total[g] = 0.0f;
  }
  for (Index first = 0; first < context; first += is.block) {
    const T *keys = cache + (table[first / is.block] * 2 * is.kv_heads + kv_head) * plane;
    const T *values = keys + is.kv_heads * plane;
    const Index count = std::min(is.block, context - first);
    if (first + is.block < context) {
      // blocks lie anywhere, so the processor cannot guess the next one
      const T *next = cache + (table[first / is.block + 1] * 2 * is.kv_heads + kv_head) * plane;
      prefetch(next, plane);
      prefetch(next + is.kv_heads * plane, plane);
    }
    block_scores(query, keys, group, dim, count, is.scale, score);
    for (Index g = 0; g < group; ++g) {
      shrink[g] = block_weights(score[g], count, largest[g], total[g]);
    }
    block_values<T, FIXED>(values, score, shrink, group, dim, count, sum);
  }
  for (Index g = 0; g < group; ++g) {
    Q *to = out + (kv_head * group + g) * dim;
    for (Index i = 0; i < dim; ++i) store(to + i, sum[g][i] / total[g]);
  }
}

}  // namespace
