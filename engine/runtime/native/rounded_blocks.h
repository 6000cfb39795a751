// Matrix products with weights that are kept in blocks, by the integer products of AVX2.
//
// Sums of a block are integers, and those of blocks are added in order, so that what a row's
// products are does not depend on the rows beside it.
#pragma once

#include "packed.h"
#include "rounded.h"

namespace {

constexpr Index MOST_ROUNDED = 4;  // rows whose sums are kept in registers

// Two products of 16 bits for each output, added to its sum.
inline __m256i multiply_add(__m256i sum, __m256i weights, __m256i inputs) {
  __m256i both;
  // else the compiler multiplies first, and keeps in memory what it adds later
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
      : "+x"(sum), "=&x"(both)
      : "x"(weights), "x"(inputs));
  return sum;
}

// The pair of inputs at `place` of each output's word.
template <int BITS>
inline __m256i pair_of(__m256i words, int place) {
  const __m256i mask = _mm256_set1_epi32(((1 << BITS) - 1) * 0x10001);
  return _mm256_and_si256(_mm256_srli_epi32(words, place * BITS), mask);
}

inline __m256i pair_at(const Rounded &of, int pair) {
  int32_t inputs;
  std::memcpy(&inputs, of.numbers + 2 * pair, sizeof inputs);
  return _mm256_set1_epi32(inputs);
}

template <int BITS>
inline __m256i words_at(const Block<BITS> &of, int word) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(of.words[word]));
}

// `sum` and the products of a block with a row, whose integers' sums are `of`.
inline Lanes scaled(Lanes sum, __m256i of, const Rounded &row, Lanes scale, Lanes offset) {
  const Lanes products = _mm256_cvtepi32_ps(of) * every(row.scale);
  return _mm256_fmadd_ps(products, scale, _mm256_fmadd_ps(every(row.total), offset, sum));
}

// finish(m, low, high) with the products of row m, at x + m * blocks, with two panels of `blocks`
// blocks each. Meanwhile fetches as many from `next`.
template <int BITS, int ROWS, typename Finish>
inline void dot_rounded(const Rounded *x, const Block<BITS> *panels, Index blocks,
                        const Block<BITS> *next, const Finish &finish) {
  constexpr int PAIRS = Block<BITS>::PLACES / 2;  // of a word
  Lanes low[ROWS], high[ROWS];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m) low[m] = high[m] = every(0.0f);
  for (Index b = 0; b < blocks; ++b, ++x) {
    const Block<BITS> &first = panels[b], &second = panels[blocks + b];
    if (next != nullptr) {
      fetch(next + b);
      fetch(next + blocks + b);
    }
    __m256i one[ROWS], other[ROWS];
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m) one[m] = other[m] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int word = 0; word < BITS; ++word) {
      const __m256i these = words_at(first, word), those = words_at(second, word);
#pragma GCC unroll 4
      for (int place = 0; place < PAIRS; ++place) {
        const __m256i here = pair_of<BITS>(these, place), there = pair_of<BITS>(those, place);
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; ++m) {
          const __m256i inputs = pair_at(x[m * blocks], word * PAIRS + place);
          one[m] = multiply_add(one[m], here, inputs);
          other[m] = multiply_add(other[m], there, inputs);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m) {
      const Rounded &row = x[m * blocks];
      low[m] = scaled(low[m], one[m], row, halfs_at(first.scale), halfs_at(first.offset));
      high[m] = scaled(high[m], other[m], row, halfs_at(second.scale), halfs_at(second.offset));
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m) finish(m, low[m], high[m]);
}

// Of at most MOST_ROUNDED rows.
template <int BITS, int ROWS = 1, typename Finish>
inline void few_rounded(Index rows, const Rounded *x, const Block<BITS> *panels, Index blocks,
                        const Block<BITS> *next, const Finish &finish) {
  if (rows == ROWS) return dot_rounded<BITS, ROWS>(x, panels, blocks, next, finish);
  if constexpr (ROWS < MOST_ROUNDED) {
    few_rounded<BITS, ROWS + 1>(rows, x, panels, blocks, next, finish);
  }
}

// Bytes in which `rows` rows of `size` inputs are rounded.
inline Index room_of_blocks(Index rows, Index size) {
  return rows * (size / BLOCK) * sizeof(Rounded);
}

// As `product_of_panels`.
template <int BITS, typename Finish>
void product_of_blocks(Member &me, const float *x, Index rows, Index size,
                       const Block<BITS> *weight, Index columns, const Finish &finish) {
  const Index blocks = size / BLOCK, chunks = columns / COLUMNS;
  Rounded *const room = me.room<Rounded>();
  const Index items = (rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  round_rows(me, x, rows, size, room);
  me.share(chunks * items, [&](Index item, Index following) {
    const auto at = [=](Index of) { return weight + of % chunks * 2 * blocks; };
    const Index begin = rows * (item / chunks) / items, end = rows * (item / chunks + 1) / items;
    const Index parts = (end - begin + MOST_ROUNDED - 1) / MOST_ROUNDED;
    for (Index part = 0; part < parts; ++part) {
      const Index first = begin + (end - begin) * part / parts;
      const Index last = begin + (end - begin) * (part + 1) / parts;
      few_rounded<BITS>(last - first, room + first * blocks, at(item), blocks,
                        part == 0 ? at(following) : nullptr,
                        [&](Index row, Lanes low, Lanes high) {
                          finish(first + row, item % chunks * COLUMNS, low, high);
                        });
    }
  });
}

}  // namespace
