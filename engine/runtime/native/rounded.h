// Inputs of products with weights in blocks, rounded to integers of 16 bits, by AVX2.
//
// Bits of weights are integers already: two of them times two inputs, summed, are one instruction
// for each output, where float32 takes two, and three more to make of bits what is multiplied. An
// input is off by at most 1 / 65,534 of the largest of the 32; as bfloat16 by 1 / 512 of itself.
#pragma once

#include "block.h"
#include "team.h"

namespace {

// BLOCK inputs of one row: scale * numbers, and the sum of these.
struct Rounded {
  int16_t numbers[BLOCK];
  float scale, total;
};

// A word has pairs of inputs, the first of each pair in its lower half.
template <int BITS>
inline BlockPlace block_place(Index output, Index i) {
  constexpr Index PLACES = Block<BITS>::PLACES;
  const Index place = i % PLACES;
  return {i / PLACES, output, place % 2 * 16 + place / 2 * BITS, output};
}

// Inputs as the nearest integers of a scale; where one is not finite, no product of theirs is.
inline Rounded rounded(const float *x) {
  constexpr float MOST = 32767.0f;
  const Lanes sign = every(-0.0f);
  Lanes most = every(0.0f), spoilt = every(0.0f);
  for (Index i = 0; i < BLOCK; i += LANES) {
    const Lanes of = lanes_at(x + i);
    most = larger(most, _mm256_andnot_ps(sign, of));
    spoilt += of - of;
  }
  const float largest = largest_lane(most);
  const Lanes times = every(largest > 0.0f ? MOST / largest : 0.0f);
  Rounded to;
  __m256i sum = _mm256_setzero_si256();
  for (Index i = 0; i < BLOCK; i += 2 * LANES) {
    const __m256i low = _mm256_cvtps_epi32(lanes_at(x + i) * times);
    const __m256i high = _mm256_cvtps_epi32(lanes_at(x + i + LANES) * times);
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to.numbers + i), both);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(both, _mm256_set1_epi16(1)));
  }
  to.scale = largest / MOST + total_of(spoilt);
  to.total = to.scale * total_of(_mm256_cvtepi32_ps(sum));
  return to;
}

// All of `rows` rows of `x` [rows, size], to [rows, size / BLOCK].
inline void round_rows(Member &me, const float *x, Index rows, Index size, Rounded *to) {
  const Index blocks = size / BLOCK;
  me.share_rows(rows, [&](Index row) {
    for (Index b = 0; b < blocks; ++b) to[row * blocks + b] = rounded(x + row * size + b * BLOCK);
  });
}

}  // namespace
