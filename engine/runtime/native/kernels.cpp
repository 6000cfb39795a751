// The steps of a transformer layer between its matrix products, for CPUs.
//
// Every function exists for bfloat16 (suffix _bf16) and float32 (_f32); sums are float32. Called
// through ctypes from engine/runtime/native/library.py, which holds the signatures. Threads are
// those of the OpenMP pool that torch uses.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

using Index = int64_t;

struct bf16 {
  uint16_t bits;
};

inline float load(bf16 value) {
  const uint32_t wide = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}

inline float load(float value) { return value; }

inline void store(bf16 *to, float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof wide);
  const uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
  // rounding could carry a NaN's payload into infinity; a quiet NaN stays one
  const uint32_t quiet = (wide >> 16) | 0x40;
  to->bits = static_cast<uint16_t>((wide & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

inline void store(float *to, float value) { *to = value; }

// exp(x) for x <= 0 within 2 units in the last place, and no less than exp(-87). Without branches, so
// that loops over it are vectorised.
inline float exp_negative(float x) {
  const float scaled = std::max(x, -87.0f) * 1.44269504088896341f;
  const int32_t whole = static_cast<int32_t>(scaled);
  const float part = scaled - static_cast<float>(whole);  // in (-1, 0]
  // Taylor series of 2^part = exp(part ln 2) to the 8th power: the rest is below 1e-8
  const float t = part * 0.693147180559945309f;
  float sum = 1.0f / 40320.0f;
  sum = sum * t + 1.0f / 5040.0f;
  sum = sum * t + 1.0f / 720.0f;
  sum = sum * t + 1.0f / 120.0f;
  sum = sum * t + 1.0f / 24.0f;
  sum = sum * t + 1.0f / 6.0f;
  sum = sum * t + 0.5f;
  sum = sum * t + 1.0f;
  sum = sum * t + 1.0f;
  const uint32_t exponent = static_cast<uint32_t>(whole + 127) << 23;
  float power;
  std::memcpy(&power, &exponent, sizeof power);
  return sum * power;
}

constexpr Index PARALLEL = 32768;  // elements from which waking the other threads pays
constexpr Index MOST_HEADS = 16;   // query heads of one KV head
constexpr Index MOST_DIM = 256;    // of a head
constexpr Index MOST_BLOCK = 256;  // tokens

template <typename T>
void rms_norm(const float *stream, const float *weight, T *out, Index rows, Index size, float eps) {
#pragma omp parallel for if (rows * size > PARALLEL)
  for (Index row = 0; row < rows; ++row) {
    const float *x = stream + row * size;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (Index i = 0; i < size; ++i) squares += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(size) + eps);
#pragma omp simd
    for (Index i = 0; i < size; ++i) store(out + row * size + i, x[i] * scale * weight[i]);
  }
}

template <typename T>
void add(float *stream, const T *delta, Index count) {
#pragma omp parallel for simd if (parallel : count > PARALLEL)
  for (Index i = 0; i < count; ++i) stream[i] += load(delta[i]);
}

template <typename T>
void silu_mul(const T *gate_up, T *out, Index rows, Index size) {
#pragma omp parallel for if (rows * size > PARALLEL)
  for (Index row = 0; row < rows; ++row) {
    const T *gate = gate_up + row * 2 * size, *up = gate + size;
#pragma omp simd
    for (Index i = 0; i < size; ++i) {
      const float x = load(gate[i]);
      const float e = exp_negative(-std::fabs(x));
      const float sigmoid = (x >= 0.0f ? 1.0f : e) / (1.0f + e);
      store(out + row * size + i, x * sigmoid * load(up[i]));
    }
  }
}

// Rotates `heads` leading heads of each row of [rows, width, dim] in place, by tables of
// [positions, dim] in the layout of engine/runtime/rope.py.
template <typename T>
void rotate(T *x, const Index *positions, const float *cosines, const float *sines, Index rows,
            Index width, Index heads, Index dim) {
  const Index half = dim / 2;
#pragma omp parallel for if (rows * heads * dim > PARALLEL)
  for (Index row = 0; row < rows; ++row) {
    const float *c = cosines + positions[row] * dim, *s = sines + positions[row] * dim;
    for (Index head = 0; head < heads; ++head) {
      T *low = x + (row * width + head) * dim, *high = low + half;
#pragma omp simd
      for (Index i = 0; i < half; ++i) {
        const float a = load(low[i]), b = load(high[i]);
        store(low + i, a * c[i] + b * s[i]);
        store(high + i, b * c[half + i] + a * s[half + i]);
      }
    }
  }
}

// Writes the last `planes` heads of each row of [rows, width, dim] to the cells of a layer's cache.
template <typename T>
void store_kv(const T *x, T *cache, const Index *cells, Index rows, Index width, Index planes,
              Index dim) {
#pragma omp parallel for if (rows * planes * dim > PARALLEL)
  for (Index row = 0; row < rows; ++row) {
    const T *from = x + (row * width + width - planes) * dim;
    for (Index plane = 0; plane < planes; ++plane) {
      std::memcpy(cache + cells[row * planes + plane] * dim, from + plane * dim, dim * sizeof(T));
    }
  }
}

struct Layout {
  Index heads, kv_heads, dim, block, width, tables;  // width: heads of a row; tables: its blocks
  float scale;
};

template <typename T>
inline void prefetch(const T *from, Index count) {
  for (Index i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
}

// Scores of one block: dots of `group` queries with the block's keys, times the scale.
template <typename T>
void block_scores(const T *queries, const T *keys, Index group, Index dim, Index count, float scale,
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

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#define SIXTEEN_KEYS 1

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

// The same for sixteen keys at once, whether all of them are there or not, with bfloat16 products.
template <Index DIM>
void sixteen_scores(const bf16 *queries, const bf16 *keys, Index group, float scale,
                    float (*score)[MOST_BLOCK]) {
  for (Index g = 0; g < group; ++g) {
    __m512 parts[16];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      parts[k] = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (Index i = 0; i < DIM; i += 32) {
        const __m512i a = _mm512_loadu_si512(queries + g * DIM + i);
        const __m512i b = _mm512_loadu_si512(keys + k * DIM + i);
        parts[k] = _mm512_dpbf16_ps(parts[k], (__m512bh)a, (__m512bh)b);
      }
    }
    _mm512_storeu_ps(score[g], _mm512_mul_ps(sums_of(parts), _mm512_set1_ps(scale)));
  }
}
#endif

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
template <typename T, Index FIXED>
void attend(const T *queries, const T *cache, const int32_t *table, Index context, Index kv_head,
            const Layout &is, T *out) {
  const Index group = is.heads / is.kv_heads, dim = FIXED ? FIXED : is.dim, plane = is.block * dim;
  alignas(64) float sum[MOST_HEADS][MOST_DIM], score[MOST_HEADS][MOST_BLOCK];
  float largest[MOST_HEADS], total[MOST_HEADS], shrink[MOST_HEADS];
  const T *query = queries + kv_head * group * dim;
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
#ifdef SIXTEEN_KEYS
    if constexpr (FIXED && sizeof(T) == sizeof(bf16)) {
      if (is.block == 16) {
        sixteen_scores<FIXED>(query, keys, group, is.scale, score);
      } else {
        block_scores(query, keys, group, dim, count, is.scale, score);
      }
    } else
#endif
      block_scores(query, keys, group, dim, count, is.scale, score);
    for (Index g = 0; g < group; ++g) {
      shrink[g] = block_weights(score[g], count, largest[g], total[g]);
    }
    block_values<T, FIXED>(values, score, shrink, group, dim, count, sum);
  }
  for (Index g = 0; g < group; ++g) {
    T *to = out + (kv_head * group + g) * dim;
    for (Index i = 0; i < dim; ++i) store(to + i, sum[g][i] / total[g]);
  }
}

template <typename T, Index FIXED>
void decode_fixed(const T *x, const T *cache, const Index *tokens, const Index *contexts,
            const int32_t *tables, Index rows, const Layout &is, T *out) {
#pragma omp parallel for schedule(dynamic, 1)
  for (Index task = 0; task < rows * is.kv_heads; ++task) {
    const Index row = task / is.kv_heads, token = tokens[row];
    attend<T, FIXED>(x + token * is.width * is.dim, cache, tables + row * is.tables, contexts[row],
                     task % is.kv_heads, is, out + token * is.heads * is.dim);
  }
}

template <typename T>
void decode(const T *x, const T *cache, const Index *tokens, const Index *contexts,
            const int32_t *tables, Index rows, const Layout &is, T *out) {
  const auto run = is.dim == 64    ? decode_fixed<T, 64>
                   : is.dim == 128 ? decode_fixed<T, 128>
                                   : decode_fixed<T, 0>;
  run(x, cache, tokens, contexts, tables, rows, is, out);
}

}  // namespace

#define EXPORT(T, suffix)                                                                        \
  void rms_norm_##suffix(const float *stream, const float *weight, T *out, Index rows,           \
                         Index size, float eps) {                                                \
    rms_norm(stream, weight, out, rows, size, eps);                                              \
  }                                                                                              \
  void add_##suffix(float *stream, const T *delta, Index count) { add(stream, delta, count); }   \
  void silu_mul_##suffix(const T *gate_up, T *out, Index rows, Index size) {                     \
    silu_mul(gate_up, out, rows, size);                                                          \
  }                                                                                              \
  void rotate_##suffix(T *x, const Index *positions, const float *cosines, const float *sines,   \
                       Index rows, Index width, Index heads, Index dim) {                        \
    rotate(x, positions, cosines, sines, rows, width, heads, dim);                               \
  }                                                                                              \
  void store_kv_##suffix(const T *x, T *cache, const Index *cells, Index rows, Index width,      \
                         Index planes, Index dim) {                                              \
    store_kv(x, cache, cells, rows, width, planes, dim);                                         \
  }                                                                                              \
  void decode_##suffix(const T *x, const T *cache, const Index *tokens, const Index *contexts,   \
                       const int32_t *tables, T *out, Index rows, Index blocks, Index heads,     \
                       Index kv_heads, Index dim, Index block, float scale) {                    \
    const Layout is{heads, kv_heads, dim, block, heads + 2 * kv_heads, blocks, scale};           \
    decode(x, cache, tokens, contexts, tables, rows, is, out);                                   \
  }

extern "C" {
EXPORT(bf16, bf16)
EXPORT(float, f32)
}
