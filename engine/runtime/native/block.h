// A block of weights as a GGUF file has them: 32 inputs that share a scale and an offset, and few
// bits for each weight.
#pragma once

#include <immintrin.h>

#include "lanes.h"

namespace {

constexpr Index BLOCK = 32;  // inputs

// A block of one panel: float16 scales and offsets of its outputs, and their bits, in the order in
// which this processor multiplies them: unpacked_dots.h and rounded.h say which.
template <int BITS>
struct Block {
  static constexpr int PLACES = 32 / BITS;

  uint16_t scale[LANES], offset[LANES];
  uint32_t words[BITS][LANES];
};

// Where one output's bits for an input are, and its scale and offset.
struct BlockPlace {
  Index word, lane, shift, shared;
};

// Asks for all lines of what lies `at`.
template <typename T>
inline void fetch(const T *at) {
  const char *bytes = reinterpret_cast<const char *>(at);
  for (Index line = 0; line < static_cast<Index>(sizeof(T)); line += 64) {
    __builtin_prefetch(bytes + line, 0, 2);
  }
}

}  // namespace
