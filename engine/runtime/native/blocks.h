// Matrix products with weights that are kept as a GGUF file has them: blocks of 32 inputs that share
// a scale and an offset, and few bits for each weight.
//
// A weight is scale * bits + offset in float32, whatever the number of rows, so that what a row's
// products are does not depend on the rows beside it.
#pragma once

#include "unpacking.h"

namespace {

constexpr Index BLOCK = 32;    // inputs
constexpr Index FEW_ROWS = 3;  // as many as are multiplied while weights are being unpacked

// A block of one panel: float16 scales and offsets of its outputs, and their bits, the first inputs'
// lowest.
template <int BITS>
struct Block {
  uint16_t scale[LANES], offset[LANES];
  uint32_t words[BITS][LANES];
};

// One output's weight for input `i` of a block.
template <int BITS>
inline float weight_at(const Block<BITS> &block, Index lane, Index i) {
  constexpr Index INPUTS = 32 / BITS;
  const uint32_t bits = block.words[i / INPUTS][lane] >> (i % INPUTS * BITS) & ((1u << BITS) - 1);
  return std::fma(static_cast<float>(bits), _cvtsh_ss(block.scale[lane]),
                  _cvtsh_ss(block.offset[lane]));
}

// The weights of a panel for one of the inputs of a word.
template <int BITS>
inline Lanes unpacked(__m256i word, int place, Lanes scale, Lanes offset) {
  const __m256i mask = _mm256_set1_epi32((1 << BITS) - 1);
  const __m256i bits = _mm256_and_si256(_mm256_srli_epi32(word, place * BITS), mask);
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(bits), scale, offset);
}

template <int BITS>
inline __m256i word_at(const Block<BITS> &block, Index word) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.words[word]));
}

// Asks for all lines of what lies `at`.
template <typename T>
inline void fetch(const T *at) {
  const char *bytes = reinterpret_cast<const char *>(at);
  for (Index line = 0; line < static_cast<Index>(sizeof(T)); line += 64) {
    __builtin_prefetch(bytes + line, 0, 2);
  }
}

// finish(m, low, high) with the products of row m with two panels of `blocks` blocks each. Meanwhile
// fetches as many from `next`.
template <int BITS, int ROWS, typename Finish>
inline void dot_blocks(const float *x, Index stride, const Block<BITS> *panels, Index blocks,
                       const Block<BITS> *next, const Finish &finish) {
  Lanes low[ROWS], high[ROWS];
#pragma GCC unroll 3
  for (int m = 0; m < ROWS; ++m) low[m] = high[m] = every(0.0f);
  for (Index b = 0; b < blocks; ++b) {
    const Block<BITS> &first = panels[b], &second = panels[blocks + b];
    fetch(next + b);
    fetch(next + blocks + b);
    const Lanes scale[2] = {halfs_at(first.scale), halfs_at(second.scale)};
    const Lanes offset[2] = {halfs_at(first.offset), halfs_at(second.offset)};
    for (Index word = 0; word < BITS; ++word) {
      const __m256i words[2] = {word_at(first, word), word_at(second, word)};
#pragma GCC unroll 8
      for (int place = 0; place < 32 / BITS; ++place, ++x) {
        const Lanes a = unpacked<BITS>(words[0], place, scale[0], offset[0]);
        const Lanes b = unpacked<BITS>(words[1], place, scale[1], offset[1]);
#pragma GCC unroll 3
        for (int m = 0; m < ROWS; ++m) {
          const Lanes input = every(x[m * stride]);
          low[m] = multiply_add(low[m], a, input);
          high[m] = multiply_add(high[m], b, input);
        }
      }
    }
  }
#pragma GCC unroll 3
  for (int m = 0; m < ROWS; ++m) finish(m, low[m], high[m]);
}

template <int BITS, int ROWS = 1, typename Finish>
inline void few_rows_of_blocks(Index rows, const float *x, Index stride, const Block<BITS> *panels,
                               Index blocks, const Block<BITS> *next, const Finish &finish) {
  if (rows == ROWS) return dot_blocks<BITS, ROWS>(x, stride, panels, blocks, next, finish);
  if constexpr (ROWS < FEW_ROWS) {
    few_rows_of_blocks<BITS, ROWS + 1>(rows, x, stride, panels, blocks, next, finish);
  }
}

// Writes two panels as packed.h takes them, in float32. Meanwhile fetches as many from `next`.
template <int BITS>
inline void unpack(const Block<BITS> *panels, Index blocks, const Block<BITS> *next, float *to) {
  for (Index b = 0; b < 2 * blocks; ++b) {
    const Lanes scale = halfs_at(panels[b].scale), offset = halfs_at(panels[b].offset);
    fetch(next + b);
    for (Index word = 0; word < BITS; ++word) {
      const __m256i bits = word_at(panels[b], word);
#pragma GCC unroll 8
      for (int place = 0; place < 32 / BITS; ++place, to += LANES) {
        put(to, unpacked<BITS>(bits, place, scale, offset));
      }
    }
  }
}

// As `product_of_panels`.
template <int BITS, typename Finish>
void product_of_blocks(Member &me, const float *x, Index rows, Index size,
                       const Block<BITS> *weight, Index columns, const Finish &finish) {
  const Index blocks = size / BLOCK, chunks = columns / COLUMNS;
  const auto at = [=](Index chunk) { return weight + chunk % chunks * 2 * blocks; };
  if (rows > FEW_ROWS) {
    return product_unpacked(
        me, x, rows, size, columns,
        [&](Index chunk, Index next, float *to) { unpack(at(chunk), blocks, at(next), to); },
        finish);
  }
  me.share(chunks, [&](Index chunk, Index next) {
    few_rows_of_blocks<BITS>(rows, x, size, at(chunk), blocks, at(next),
                             [&](Index row, Lanes low, Lanes high) {
                               finish(row, chunk * COLUMNS, low, high);
                             });
  });
}

}  // namespace
