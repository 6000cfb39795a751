// Matrix products with weights that are kept in blocks, by bfloat16 dot products.
//
// A weight is the bfloat16 next to scale * bits + offset, whatever the number of rows, so that what a
// row's products are does not depend on the rows beside it.
#pragma once

#include "unpacked_dots.h"
#include "unpacking.h"

namespace {

// finish(m, low, high) with the products of row m with two panels of `blocks` blocks each, which are
// unpacked in registers. Meanwhile fetches as many from `next`.
template <int BITS, int ROWS, typename Finish>
inline void dot_blocks(const Number *x, Index stride, const Block<BITS> *panels, Index blocks,
                       const Block<BITS> *next, const Finish &finish) {
  Lanes low[ROWS], high[ROWS];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m) low[m] = high[m] = every(0.0f);
  for (Index b = 0; b < blocks; ++b) {
    Unpacked<BITS> first(panels[b]), second(panels[blocks + b]);
    fetch(next + b);
    fetch(next + blocks + b);
    for (Index group = 0; group < GROUPS<BITS>; ++group) {
      first.take(group);
      second.take(group);
#pragma GCC unroll 8
      for (int place = 0; place < Block<BITS>::PLACES; ++place, x += 2) {
        const Weights one = first.at(place), other = second.at(place);
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; ++m) {
          const Inputs inputs = inputs_at(reinterpret_cast<const char *>(x + m * stride), 0);
          low[m] = multiply_add(low[m], one, inputs);
          high[m] = multiply_add(high[m], other, inputs);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; ++m) finish(m, low[m], high[m]);
}

// Of at most FEW_ROWS rows.
template <int BITS, int ROWS = 1, typename Finish>
inline void few_rows_of_blocks(Index rows, const Number *x, Index stride, const Block<BITS> *panels,
                               Index blocks, const Block<BITS> *next, const Finish &finish) {
  if (rows == ROWS) return dot_blocks<BITS, ROWS>(x, stride, panels, blocks, next, finish);
  if constexpr (ROWS < FEW_ROWS) {
    few_rows_of_blocks<BITS, ROWS + 1>(rows, x, stride, panels, blocks, next, finish);
  }
}

// Writes two panels as packed.h takes them. Meanwhile fetches as many from `next`.
template <int BITS>
inline void unpack(const Block<BITS> *panels, Index blocks, const Block<BITS> *next, Panel *to) {
  for (Index b = 0; b < 2 * blocks; ++b) {
    Unpacked<BITS> block(panels[b]);
    fetch(next + b);
    for (Index group = 0; group < GROUPS<BITS>; ++group) {
      block.take(group);
#pragma GCC unroll 8
      for (int place = 0; place < Block<BITS>::PLACES; ++place, to += 2 * LANES) {
        put(to, block.at(place));
      }
    }
  }
}

// Rows are multiplied as they are.
inline Index room_of_blocks(Index, Index) { return 0; }

// As `product_of_panels`.
template <int BITS, typename Finish>
void product_of_blocks(Member &me, const Number *x, Index rows, Index size,
                       const Block<BITS> *weight, Index columns, const Finish &finish) {
  const Index blocks = size / BLOCK, chunks = columns / COLUMNS;
  const auto at = [=](Index chunk) { return weight + chunk % chunks * 2 * blocks; };
  if (rows > FEW_ROWS) {
    return product_unpacked(
        me, x, rows, size, columns,
        [&](Index chunk, Index next, Panel *to) { unpack(at(chunk), blocks, at(next), to); },
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
