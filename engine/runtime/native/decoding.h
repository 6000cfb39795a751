// Attention of one decoding sequence, for heads of a size known to the compiler and blocks of whole
// sixteens.
#pragma once

#include "ahead.h"
#include "attention.h"
#include "lanes.h"
#ifdef DOTS
#include "sixteens_dots.h"
#else
#include "sixteens_floats.h"
#endif

namespace {

// Turns `count` scores into weights, zeros up to the next sixteen; keeps the largest score and the
// total, and returns by what earlier sums are to shrink.
inline float span_weights(const float *score, Index count, Number *weight, float &largest,
                          float &total) {
  Lanes most = every(largest), sum = every(0.0f);
  for (Index k = 0; k < count; k += LANES) {
    most = larger(most, first_lanes(count - k, lanes_at(score + k), most));
  }
  const float now = largest_lane(most), shrink = exp_negative(largest - now);
  const Index padded = (count + 15) / 16 * 16;
  for (Index k = 0; k < padded; k += LANES) {
    const Lanes exact = exp_lanes(lanes_at(score + k) - every(now));
    const Lanes kept = first_lanes(count - k, exact, every(0.0f));
    sum += kept;
    put(weight + k, kept);
  }
  total = total * shrink + total_of(sum);
  largest = now;
  return shrink;
}

// The queries as they are multiplied, and what becomes of their scores so far: the sums of values, by
// the softmax of Milakov and Gimelshein (2018), and room for the next span's.
template <Index DIM>
struct Running {
  alignas(64) Number query[MOST_HEADS][DIM];
  alignas(64) float sum[MOST_HEADS][DIM], score[MOST_HEADS][SPAN];
  alignas(64) Number weight[MOST_HEADS][SPAN];
  float largest[MOST_HEADS], total[MOST_HEADS];
};

// work(head, k) for every sixteen of `count` keys, from k on, and the first of every `group` heads,
// in the order in which they lie in blocks.
template <typename Work>
inline void each_sixteen(Index count, Index block, Index heads, Index group, const Work &work) {
  for (Index begin = 0; begin < count; begin += block) {
    const Index end = std::min(count, begin + block);
    for (Index head = 0; head < heads; head += group) {
      for (Index k = begin; k < end; k += 16) work(head, k);
    }
  }
}

// The weighted values of sixteen keys for at most TOGETHER queries from `head` on.
template <Index DIM, int QUERIES = 1>
inline void few_values(Index queries, const bf16 *values, Index count, Index head, Index k,
                       Running<DIM> &of) {
  if (queries == QUERIES) {
    return sixteen_values<DIM, QUERIES>(values, count, of.weight[head] + k, SPAN, of.sum[head]);
  }
  if constexpr (QUERIES < TOGETHER<DIM>) {
    few_values<DIM, QUERIES + 1>(queries, values, count, head, k, of);
  }
}

// As `attend` of attention.h, for all that is read `now`: what lies together in memory is read
// together. The KV heads have at most MOST_HEADS queries. `ahead` has begun with the same.
template <Index DIM>
void attend_sixteens(const Number *queries, const bf16 *cache, const Reads &now, const Layout &is,
                     Ahead &ahead, Number *out) {
  const auto [table, context, kv_head, some] = now;
  constexpr Index LINES = 16 * DIM * sizeof(bf16) / LINE;  // of sixteen keys or values
  const Index group = is.heads / is.kv_heads, plane = is.block * DIM, heads = some * group;
  const Index apart = is.kv_heads * plane;  // from a head's keys to its values
  const auto keys_at = [&, table = table, kv_head = kv_head](Index first) {
    return cache + (table[first / is.block] * 2 * is.kv_heads + kv_head) * plane +
           first % is.block * DIM;
  };
  Running<DIM> of;
  for (Index head = 0; head < heads; ++head) {
    arrange<DIM>(queries + (kv_head * group + head) * DIM, of.query[head]);
    std::fill(of.sum[head], of.sum[head] + DIM, 0.0f);
    of.largest[head] = -INFINITY, of.total[head] = 0.0f;
  }
  for (Index first = 0; first < context; first += SPAN) {
    const Index count = std::min(SPAN, context - first);
    each_sixteen(count, is.block, heads, group, [&](Index head, Index k) {
      const bf16 *keys = keys_at(first + k) + head / group * plane;
      for (Index g = 0; g < group; ++g) {
        ahead.fetch(LINES * (g + 1) / group - LINES * g / group);
        sixteen_scores<DIM>(of.query[head + g], keys, is.scale, of.score[head + g] + k);
      }
    });
    for (Index head = 0; head < heads; ++head) {
      const float shrink = span_weights(of.score[head], count, of.weight[head], of.largest[head],
                                        of.total[head]);
      if (shrink < 1.0f) {
        for (Index i = 0; i < DIM; ++i) of.sum[head][i] *= shrink;
      }
    }
    each_sixteen(count, is.block, heads, group, [&](Index head, Index k) {
      const bf16 *values = keys_at(first + k) + apart + head / group * plane;
      ahead.fetch(LINES);
      for (Index g = 0; g < group; g += TOGETHER<DIM>) {
        few_values<DIM>(std::min<Index>(TOGETHER<DIM>, group - g), values,
                        std::min<Index>(16, count - k), head + g, k, of);
      }
    });
  }
  for (Index head = 0; head < heads; ++head) {
    restore<DIM>(of.sum[head], of.total[head], out + (kv_head * group + head) * DIM);
  }
}

}  // namespace
