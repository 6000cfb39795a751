// The steps of a transformer layer between its matrix products, for CPUs.
//
// Every function exists for bfloat16 (suffix _bf16) and float32 (_f32); sums are float32. Called
// through ctypes from engine/runtime/native/library.py, which holds the signatures. Threads are
// those of the OpenMP pool that torch uses.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

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

// With a size known to the compiler the loops over a head are unrolled; FIXED 0 is any size.
//
// One KV head of one sequence, over the blocks of its table, with the online softmax of Milakov and
// Gimelshein (2018): sums so far are scaled whenever a larger score appears.
template <typename T, Index FIXED>
void attend(const T *queries, const T *cache, const int32_t *table, Index context, Index kv_head,
            const Layout &is, T *out) {
  const Index group = is.heads / is.kv_heads, dim = FIXED ? FIXED : is.dim, plane = is.block * dim;
  alignas(64) float query[MOST_HEADS][MOST_DIM], sum[MOST_HEADS][MOST_DIM];
  alignas(64) float score[MOST_HEADS][MOST_BLOCK], wide[MOST_DIM];
  float largest[MOST_HEADS], total[MOST_HEADS];
  for (Index g = 0; g < group; ++g) {
    const T *from = queries + (kv_head * group + g) * dim;
    for (Index i = 0; i < dim; ++i) query[g][i] = load(from[i]) * is.scale, sum[g][i] = 0.0f;
    largest[g] = -INFINITY, total[g] = 0.0f;
  }
  for (Index first = 0; first < context; first += is.block) {
    const T *keys = cache + (table[first / is.block] * 2 * is.kv_heads + kv_head) * plane;
    const T *values = keys + is.kv_heads * plane;
    const Index count = std::min(is.block, context - first);
    for (Index k = 0; k < count; ++k) {
#pragma omp simd
      for (Index i = 0; i < dim; ++i) wide[i] = load(keys[k * dim + i]);
      for (Index g = 0; g < group; ++g) {
        float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
        for (Index i = 0; i < dim; ++i) dot += query[g][i] * wide[i];
        score[g][k] = dot;
      }
    }
    for (Index g = 0; g < group; ++g) {
      float most = largest[g];
      for (Index k = 0; k < count; ++k) most = std::max(most, score[g][k]);
      if (most > largest[g]) {
        const float shrink = exp_negative(largest[g] - most);
        total[g] *= shrink;
#pragma omp simd
        for (Index i = 0; i < dim; ++i) sum[g][i] *= shrink;
        largest[g] = most;
      }
      float block_total = 0.0f;
#pragma omp simd reduction(+ : block_total)
      for (Index k = 0; k < count; ++k) {
        score[g][k] = exp_negative(score[g][k] - most);
        block_total += score[g][k];
      }
      total[g] += block_total;
    }
    for (Index k = 0; k < count; ++k) {
#pragma omp simd
      for (Index i = 0; i < dim; ++i) wide[i] = load(values[k * dim + i]);
      for (Index g = 0; g < group; ++g) {
        const float weight = score[g][k];
#pragma omp simd
        for (Index i = 0; i < dim; ++i) sum[g][i] += weight * wide[i];
      }
    }
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
