// Keys and values in panels as packed.h takes them.
#pragma once

#include "lanes.h"
#include "plane.h"

namespace {

// Panels of LANES keys for all numbers of a head; keys from `count` on are zero.
inline void pack_keys(const Plane &keys, Index first, Index count, Panel *to) {
  for (Index panel = 0; panel < count; panel += LANES, to += LANES * keys.dim) {
    for (Index k = 0; k < LANES; ++k) {
      const bf16 *key = panel + k < count ? keys.at(first + panel + k) : nullptr;
      for (Index i = 0; i < keys.dim; ++i) to[i * LANES + k] = key == nullptr ? 0 : load(key[i]);
    }
  }
}

// Panels of LANES numbers of a head for all keys, `padded` of which are made.
inline void pack_values(const Plane &values, Index first, Index count, Index padded, Panel *to) {
  for (Index k = 0; k < padded; ++k) {
    const bf16 *value = k < count ? values.at(first + k) : nullptr;
    for (Index i = 0; i < values.dim; i += LANES) {
      Panel *panel = to + i * padded + k * LANES;
      for (Index j = 0; j < LANES; ++j) panel[j] = value == nullptr ? 0 : load(value[i + j]);
    }
  }
}

}  // namespace
