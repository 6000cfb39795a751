// Keys and values in panels as packed.h takes them.
#pragma once

#include "lanes.h"
#include "plane.h"

namespace {

struct Pair {
  bf16 first, second;
};

// Panels of LANES keys for pairs of a head's numbers; keys from `count` on are zero.
inline void pack_keys(const Plane &keys, Index first, Index count, bf16 *to) {
  Pair *pairs = reinterpret_cast<Pair *>(to);
  for (Index panel = 0; panel < count; panel += LANES) {
    for (Index k = 0; k < LANES; ++k) {
      if (panel + k >= count) {
        for (Index i = 0; i < keys.dim / 2; ++i) pairs[i * LANES + k] = Pair{};
        continue;
      }
      const Pair *key = reinterpret_cast<const Pair *>(keys.at(first + panel + k));
      for (Index i = 0; i < keys.dim / 2; ++i) pairs[i * LANES + k] = key[i];
    }
    pairs += LANES * keys.dim / 2;
  }
}

// Panels of LANES numbers of a head for pairs of keys, `padded` of which are made.
inline void pack_values(const Plane &values, Index first, Index count, Index padded, bf16 *to) {
  static const bf16 zeros[MOST_DIM]{};
  for (Index k = 0; k < padded; k += 2) {
    const bf16 *a = k < count ? values.at(first + k) : zeros;
    const bf16 *b = k + 1 < count ? values.at(first + k + 1) : zeros;
    for (Index i = 0; i < values.dim; i += LANES) {
      Pair *panel = reinterpret_cast<Pair *>(to + i * padded + k * LANES);
      for (Index j = 0; j < LANES; ++j) panel[j] = Pair{a[i + j], b[i + j]};
    }
  }
}

}  // namespace
