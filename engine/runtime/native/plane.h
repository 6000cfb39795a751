// Where the keys or values of one head lie.
#pragma once

#include "numbers.h"

namespace {

// A sequence's keys or values of one head in one layer, wherever its blocks lie.
struct Plane {
  const bf16 *cache;
  const int32_t *table;
  Index block, planes, plane, dim;
  const bf16 *at(Index position) const {
    const Index cell = (table[position / block] * planes + plane) * block + position % block;
    return cache + cell * dim;
  }
};

}  // namespace
