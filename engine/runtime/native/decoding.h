// Attention of one decoding sequence with the bfloat16 dot products of AVX-512, for heads of a size
// known to the compiler and blocks of whole sixteens.
#pragma once

#include "ahead.h"
#include "attention.h"

namespace {

constexpr Index SPAN = 64;  // keys between two looks at the largest score

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

// sum[q] += weight[q] . values for QUERIES queries and the first `count` of sixteen keys, two keys
// at a time.
template <Index DIM, int QUERIES>
inline void sixteen_values(const bf16 *values, Index count, const bf16 (*weight)[SPAN],
                           float (*sum)[DIM], __m512i low, __m512i high) {
  constexpr Index PARTS = DIM / 16;
  __m512 total[QUERIES][PARTS];
#pragma GCC unroll 4
  for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 8
    for (Index i = 0; i < PARTS; ++i) total[q][i] = _mm512_loadu_ps(sum[q] + 16 * i);
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
      std::memcpy(&pair, weight[q] + k, sizeof pair);
      const __m512bh two = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (Index i = 0; i < PARTS; ++i) total[q][i] = _mm512_dpbf16_ps(total[q][i], pairs[i], two);
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < QUERIES; ++q) {
#pragma GCC unroll 8
    for (Index i = 0; i < PARTS; ++i) _mm512_storeu_ps(sum[q] + 16 * i, total[q][i]);
  }
}

// Turns `count` scores into weights, zeros up to the next sixteen; keeps the largest score and the
// total, and returns by what earlier sums are to shrink.
inline float span_weights(const float *score, Index count, bf16 *weight, float &largest,
                          float &total) {
  const auto lanes = [count](Index k) {
    return static_cast<__mmask16>(count - k >= 16 ? 0xffff : (1 << (count - k)) - 1);
  };
  __m512 most = _mm512_set1_ps(largest), sum = _mm512_setzero_ps();
  for (Index k = 0; k < count; k += 16) {
    most = _mm512_mask_max_ps(most, lanes(k), most, _mm512_loadu_ps(score + k));
  }
  const float now = _mm512_reduce_max_ps(most), shrink = exp_negative(largest - now);
  for (Index k = 0; k < count; k += 16) {
    const __m512 exact = exp_lanes(_mm512_loadu_ps(score + k) - _mm512_set1_ps(now));
    const __m512 kept = _mm512_maskz_mov_ps(lanes(k), exact);
    sum += kept;
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(weight + k), (__m256i)_mm512_cvtneps_pbh(kept));
  }
  total = total * shrink + _mm512_reduce_add_ps(sum);
  largest = now;
  return shrink;
}

// What becomes of a query's scores so far: the sums of values, by the softmax of Milakov and
// Gimelshein (2018), and room for the next span's.
template <Index DIM>
struct Running {
  alignas(64) float sum[MOST_HEADS][DIM], score[MOST_HEADS][SPAN];
  alignas(64) bf16 weight[MOST_HEADS][SPAN];
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

// The weighted values of sixteen keys for all queries of one KV head, from `head` on.
template <Index DIM>
inline void add_values(const bf16 *values, Index count, Index group, Index head, Index k,
                       Running<DIM> &of, __m512i low, __m512i high) {
  constexpr int TOGETHER = DIM == 64 ? 4 : 2;  // as many as keep their sums in registers
  for (Index g = 0; g < group; g += TOGETHER) {
    const auto add = group - g >= TOGETHER ? sixteen_values<DIM, TOGETHER>
                     : group - g == 3      ? sixteen_values<DIM, 3>
                     : group - g == 2      ? sixteen_values<DIM, 2>
                                           : sixteen_values<DIM, 1>;
    add(values, count, reinterpret_cast<const bf16(*)[SPAN]>(of.weight[head + g] + k),
        of.sum + head + g, low, high);
  }
}

// As `attend` of attention.h, for all that is read `now`: what lies together in memory is read
// together. The KV heads have at most MOST_HEADS queries. `ahead` has begun with the same.
template <Index DIM>
void attend_sixteens(const bf16 *queries, const bf16 *cache, const Reads &now, const Layout &is,
                     Ahead &ahead, bf16 *out) {
  const auto [table, context, kv_head, some] = now;
  constexpr Index LINES = 16 * DIM * sizeof(bf16) / LINE;  // of sixteen keys or values
  const Index group = is.heads / is.kv_heads, plane = is.block * DIM, heads = some * group;
  const Index apart = is.kv_heads * plane;  // from a head's keys to its values
  const auto keys_at = [&, table = table, kv_head = kv_head](Index first) {
    return cache + (table[first / is.block] * 2 * is.kv_heads + kv_head) * plane +
           first % is.block * DIM;
  };
  alignas(64) uint16_t order[2][32];
  for (int i = 0; i < 32; ++i) {
    order[0][i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    order[1][i] = static_cast<uint16_t>(i / 2 + i % 2 * 32 + 16);
  }
  const __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
  Running<DIM> of;
  const bf16 *query = queries + kv_head * group * DIM;
  for (Index head = 0; head < heads; ++head) {
    std::fill(of.sum[head], of.sum[head] + DIM, 0.0f);
    of.largest[head] = -INFINITY, of.total[head] = 0.0f;
  }
  for (Index first = 0; first < context; first += SPAN) {
    const Index count = std::min(SPAN, context - first);
    each_sixteen(count, is.block, heads, group, [&](Index head, Index k) {
      const bf16 *keys = keys_at(first + k) + head / group * plane;
      for (Index g = 0; g < group; ++g) {
        ahead.fetch(LINES * (g + 1) / group - LINES * g / group);
        sixteen_scores<DIM>(query + (head + g) * DIM, keys, is.scale, of.score[head + g] + k);
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
      add_values<DIM>(values, std::min<Index>(16, count - k), group, head, k, of, low, high);
    });
  }
  for (Index head = 0; head < heads; ++head) {
    bf16 *to = out + (kv_head * group + head) * DIM;
    for (Index i = 0; i < DIM; ++i) store(to + i, of.sum[head][i] / of.total[head]);
  }
}

}  // namespace
