// The steps of a transformer layer between its matrix products, for CPUs.
//
// Every function exists for bfloat16 (suffix _bf16) and float32 (_f32); sums are float32. Called
// through ctypes from engine/runtime/native/library.py, which holds the signatures. Threads are
// those of the OpenMP pool that torch uses.

#include <omp.h>

#include "choice.h"
#include "rows.h"

// with AMX the products of torch were not measured against these
#if (defined(DOTS) || defined(FLOATS)) && !defined(__AMX_BF16__)
#define WHOLE_STEP 1
#include "forward.h"
#endif

namespace {

constexpr Index PARALLEL = 32768;  // elements from which waking the other threads pays
constexpr Index SEARCHED = 512;    // numbers compared before looking whether one was equal

template <typename T>
void rms_norm(const float *stream, const float *weight, T *out, Index rows, Index size, float eps) {
#pragma omp parallel for if (rows * size > PARALLEL)
  for (Index row = 0; row < rows; ++row) {
    norm_row(stream + row * size, weight, out + row * size, size, eps);
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
      store(out + row * size + i, silu(load(gate[i])) * load(up[i]));
    }
  }
}

// Rotates the leading heads of each row of [rows, width, dim] in place, by tables of
// [positions, dim].
template <typename T>
void rotate(T *x, const Index *positions, const float *cosines, const float *sines, Index rows,
            Index width, Index heads, Index dim) {
#pragma omp parallel for if (rows * heads * dim > PARALLEL)
  for (Index row = 0; row < rows; ++row) {
    const Index angle = positions[row] * dim;
    rotate_row(x + row * width * dim, cosines + angle, sines + angle, heads, dim);
  }
}

// Writes the last `planes` heads of each row of [rows, width, dim] to the cells of a layer's cache.
template <typename T>
void store_kv(const T *x, T *cache, const Index *cells, Index rows, Index width, Index planes,
              Index dim) {
#pragma omp parallel for if (rows * planes * dim > PARALLEL)
  for (Index row = 0; row < rows; ++row) {
    store_row(x + (row * width + width - planes) * dim, cache, cells + row * planes, planes, dim);
  }
}

template <typename T>
void decode(const T *x, const T *cache, const Index *tokens, const Index *contexts,
            const int32_t *tables, Index rows, const Layout &is, T *out) {
  const Index some = heads_together(is, rows, omp_get_max_threads()), parts = is.kv_heads / some;
#pragma omp parallel for schedule(dynamic, 1)
  for (Index task = 0; task < rows * parts; ++task) {
    const Index row = task / parts, token = tokens[row];
    const Reads now{tables + row * is.tables, contexts[row], task % parts * some, some};
    Ahead ahead(cache, is);
    attend_heads(x + token * is.width * is.dim, cache, now, Reads{}, is, ahead,
                 out + token * is.heads * is.dim);
  }
}

// The largest number of each row of `columns`, which are `stride` apart, and its first place. A NaN
// anywhere in a row is its largest.
template <typename T>
void largest(const T *x, float *best, Index *place, Index rows, Index columns, Index stride) {
#pragma omp parallel for if (rows * columns > PARALLEL)
  for (Index row = 0; row < rows; ++row) {
    const T *from = x + row * stride;
    float most = -INFINITY;
    int unordered = 0;
#pragma omp simd reduction(max : most) reduction(| : unordered)
    for (Index i = 0; i < columns; ++i) {
      const float value = load(from[i]);
      most = std::max(most, value);
      unordered |= value != value;
    }
    Index at = 0;
    for (int found = 0; !unordered && at + SEARCHED <= columns; at += SEARCHED) {
#pragma omp simd reduction(| : found)
      for (Index i = 0; i < SEARCHED; ++i) found |= load(from[at + i]) == most;
      if (found) break;
    }
    while (!unordered && load(from[at]) != most) ++at;
    best[row] = unordered ? NAN : most;
    place[row] = unordered ? 0 : at;
  }
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
  void largest_##suffix(const T *x, float *best, Index *place, Index rows, Index columns,        \
                        Index stride) {                                                          \
    largest(x, best, place, rows, columns, stride);                                              \
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

#ifdef WHOLE_STEP
void forward_bf16(const Model *model, const Step *step) { forward(*model, *step); }
Index panel_outputs() { return LANES; }
Index activation_bytes() { return sizeof(Number); }
#endif
}
