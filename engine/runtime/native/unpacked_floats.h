// bfloat16 weights on their way to float32, by AVX2.
#pragma once

#include "packed.h"

namespace {

constexpr Index SHARED_ROWS = 20;  // for more rows it pays to write bfloat16 panels as float32

// Writes two bfloat16 panels in float32. Meanwhile fetches as many from `next`.
inline void unpack(const bf16 *panels, Index size, const bf16 *next, float *to) {
  for (Index i = 0; i < size; ++i, panels += COLUMNS, next += COLUMNS, to += COLUMNS) {
    __builtin_prefetch(next, 0, 2);
    put(to, weights_at(panels, 0), weights_at(panels, 1));
  }
}

}  // namespace
