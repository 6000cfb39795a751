// Weights on their way from few bits to pairs of bfloat16, by AVX-512.
//
// Two words hold what as many multiply_adds in a row take as a word has places. Word h has the pairs of
// inputs side by side for each output of the h-th half of the panel, the order in which one
// instruction makes two vectors bfloat16; scales and offsets of the halves take turns.
#pragma once

#include "block.h"

namespace {

template <int BITS>
constexpr Index GROUPS = BITS / 2;  // of words

template <int BITS>
inline BlockPlace block_place(Index output, Index i) {
  constexpr Index PLACES = Block<BITS>::PLACES, HALF = LANES / 2;
  const Index half = output / HALF, lane = output % HALF * 2, pair = i / 2;
  return {pair / PLACES * 2 + half, lane + i % 2, pair % PLACES * BITS, lane + half};
}

// The numbers that the lowest BITS bits of each lane are.
template <int BITS>
inline Lanes numbers_of(__m512i words) {
  if constexpr (BITS == 4) {  // these are all that a permutation looks at
    const Lanes numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(words, numbers);
  } else {
    return _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32((1 << BITS) - 1)));
  }
}

// Sixteen float16 numbers.
inline Lanes halfs_at(const uint16_t *at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)));
}

// Those of a block of one panel.
template <int BITS>
class Unpacked {
 public:
  explicit Unpacked(const Block<BITS> &of) : of_(of) {
    const Lanes scale = halfs_at(of.scale), offset = halfs_at(of.offset);
    scale_[0] = _mm512_moveldup_ps(scale), scale_[1] = _mm512_movehdup_ps(scale);
    offset_[0] = _mm512_moveldup_ps(offset), offset_[1] = _mm512_movehdup_ps(offset);
  }

  void take(Index group) {
    words_[0] = _mm512_loadu_si512(of_.words[2 * group]);
    words_[1] = _mm512_loadu_si512(of_.words[2 * group + 1]);
  }

  // What one multiply_add takes, of the group taken last.
  Weights at(int place) const { return _mm512_cvtne2ps_pbh(half(1, place), half(0, place)); }

 private:
  Lanes half(int of, int place) const {
    const __m512i bits = _mm512_srli_epi32(words_[of], place * BITS);
    return _mm512_fmadd_ps(numbers_of<BITS>(bits), scale_[of], offset_[of]);
  }

  const Block<BITS> &of_;
  Lanes scale_[2], offset_[2];
  __m512i words_[2];
};

}  // namespace
