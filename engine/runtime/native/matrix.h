// Matrix products with weights of any kind.
#pragma once

#ifdef DOTS
#include "blocks.h"
#else
#include "rounded_blocks.h"
#include "unpacked_floats.h"
#include "unpacking.h"
#endif

namespace {

// Packed weights: bfloat16 panels of packed.h where `bits` is 16, else the blocks of block.h.
struct Matrix {
  const void *packed;
  Index bits;

  const bf16 *panels() const { return static_cast<const bf16 *>(packed); }
  template <int BITS>
  const Block<BITS> *blocks() const {
    return static_cast<const Block<BITS> *>(packed);
  }
};

// Bytes of a team's room that the product with so many rows of `size` inputs takes.
inline Index product_room(const Matrix &weight, Index rows, Index size) {
  return weight.bits == 16 ? 0 : room_of_blocks(rows, size);
}

// finish(row, column, low, high) with the products of each of `rows` rows of `x` [rows, size] with
// each COLUMNS of the `columns` outputs of `weight`.
template <typename Finish>
void product(Member &me, const Number *x, Index rows, Index size, const Matrix &weight,
             Index columns, const Finish &finish) {
  if (weight.bits == 4) {
    return product_of_blocks(me, x, rows, size, weight.blocks<4>(), columns, finish);
  }
  if (weight.bits == 8) {
    return product_of_blocks(me, x, rows, size, weight.blocks<8>(), columns, finish);
  }
#ifdef FLOATS
  if (rows > SHARED_ROWS) {
    const auto at = [&](Index chunk) { return weight.panels() + chunk * COLUMNS * size; };
    return product_unpacked(
        me, x, rows, size, columns,
        [&](Index chunk, Index next, float *to) { unpack(at(chunk), size, at(next), to); },
        finish);
  }
#endif
  product_of_panels(me, x, rows, size, weight.panels(), columns, finish);
}

// scale * bits + offset, as exact as what is multiplied.
template <int BITS>
inline void block_row(const Matrix &of, Index id, Index size, float *to) {
  const Block<BITS> *panel = of.blocks<BITS>() + id / LANES * (size / BLOCK);
  for (Index i = 0; i < size; ++i) {
    const Block<BITS> &block = panel[i / BLOCK];
    const BlockPlace at = block_place<BITS>(id % LANES, i % BLOCK);
    const uint32_t bits = block.words[at.word][at.lane] >> at.shift & ((1u << BITS) - 1);
    Panel weight;
    store(&weight, std::fma(static_cast<float>(bits), _cvtsh_ss(block.scale[at.shared]),
                            _cvtsh_ss(block.offset[at.shared])));
    to[i] = load(weight);
  }
}

// The weights [size] of one output.
inline void weight_row(const Matrix &of, Index id, Index size, float *to) {
  if (of.bits == 4) return block_row<4>(of, id, size, to);
  if (of.bits == 8) return block_row<8>(of, id, size, to);
  const bf16 *column = of.panels() + id / LANES * LANES * size + id % LANES * 2;
  for (Index i = 0; i < size; ++i) to[i] = load(column[i / 2 * 2 * LANES + i % 2]);
}

}  // namespace
