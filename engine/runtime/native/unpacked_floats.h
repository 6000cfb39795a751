// Weights on their way from few bits, or from bfloat16, to float32, by AVX2.
#pragma once

#include "block.h"
#include "packed.h"

namespace {

// Those of a block of one panel.
template <int BITS>
class Unpacked {
 public:
  explicit Unpacked(const Block<BITS> &of)
      : of_(of), scale_(halfs_at(of.scale)), offset_(halfs_at(of.offset)) {}

  void take(Index group) {
    word_ = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(of_.words[group]));
  }

  // What one multiply_add takes, of the group taken last.
  Weights at(int place) const {
    const __m256i mask = _mm256_set1_epi32((1 << BITS) - 1);
    const __m256i bits = _mm256_and_si256(_mm256_srli_epi32(word_, place * BITS), mask);
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(bits), scale_, offset_);
  }

 private:
  const Block<BITS> &of_;
  const Lanes scale_, offset_;
  __m256i word_;
};

constexpr Index SHARED_ROWS = 20;  // for more rows it pays to write bfloat16 panels as float32

// Writes two bfloat16 panels in float32. Meanwhile fetches as many from `next`.
inline void unpack(const bf16 *panels, Index size, const bf16 *next, float *to) {
  for (Index i = 0; i < size; ++i, panels += COLUMNS, next += COLUMNS, to += COLUMNS) {
    __builtin_prefetch(next, 0, 2);
    put(to, weights_at(panels, 0), weights_at(panels, 1));
  }
}

}  // namespace
