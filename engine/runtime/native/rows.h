// What is done to one position's numbers between the matrix products.
#pragma once

#include "numbers.h"

namespace {

template <typename T>
inline void norm_row(const float *x, const float *weight, T *out, Index size, float eps) {
  float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
  for (Index i = 0; i < size; ++i) squares += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(size) + eps);
#pragma omp simd
  for (Index i = 0; i < size; ++i) store(out + i, x[i] * scale * weight[i]);
}

inline float silu(float x) {
  const float e = exp_negative(-std::fabs(x));
  return x * ((x >= 0.0f ? 1.0f : e) / (1.0f + e));
}

// Rotates `heads` heads in place by one position's rows of the tables of engine/runtime/rope.py.
template <typename T>
inline void rotate_row(T *x, const float *c, const float *s, Index heads, Index dim) {
  const Index half = dim / 2;
  for (Index head = 0; head < heads; ++head) {
    T *low = x + head * dim, *high = low + half;
#pragma omp simd
    for (Index i = 0; i < half; ++i) {
      const float a = load(low[i]), b = load(high[i]);
      store(low + i, a * c[i] + b * s[i]);
      store(high + i, b * c[half + i] + a * s[half + i]);
    }
  }
}

// Writes `planes` heads, keys and then values, to their cells of a layer's cache.
template <typename T>
inline void store_row(const T *x, T *cache, const Index *cells, Index planes, Index dim) {
  for (Index plane = 0; plane < planes; ++plane) {
    std::memcpy(cache + cells[plane] * dim, x + plane * dim, dim * sizeof(T));
  }
}

}  // namespace
