// A block of weights as a GGUF file has them: 32 inputs that share a scale and an offset, and few
// bits for each weight.
#pragma once

#include <immintrin.h>

#include "lanes.h"

namespace {

constexpr Index BLOCK = 32;           // inputs
constexpr Index INPUTS = 2 / HALVES;  // of each output in one multiply_add

// A block of one panel: float16 scales and offsets of its outputs, and their bits, the first inputs'
// lowest. INPUTS words hold what so many multiply_adds in a row take as a word has places. Where that
// is a pair of inputs, word h has it side by side for each output of the h-th half of the panel, the
// order in which one instruction makes two vectors bfloat16; scales and offsets of the halves take
// turns.
template <int BITS>
struct Block {
  static constexpr Index GROUPS = BITS / INPUTS;  // of words
  static constexpr int PLACES = 32 / BITS;

  uint16_t scale[LANES], offset[LANES];
  uint32_t words[BITS][LANES];
};

// One output's weight for input `i` of a block, as it is multiplied.
template <int BITS>
inline float weight_at(const Block<BITS> &block, Index output, Index i) {
  constexpr Index PLACES = Block<BITS>::PLACES, PART = LANES / INPUTS;
  const Index part = output / PART, lane = output % PART * INPUTS, step = i / INPUTS;
  const uint32_t word = block.words[step / PLACES * INPUTS + part][lane + i % INPUTS];
  const uint32_t bits = word >> (step % PLACES * BITS) & ((1u << BITS) - 1);
  Panel weight;
  store(&weight, std::fma(static_cast<float>(bits), _cvtsh_ss(block.scale[lane + part]),
                          _cvtsh_ss(block.offset[lane + part])));
  return load(weight);
}

}  // namespace
