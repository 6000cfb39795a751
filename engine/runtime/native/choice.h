// Which attention a decoding sequence gets.
#pragma once

#include <type_traits>

#include "ahead.h"
#include "attention.h"
#include "lanes.h"

#if defined(DOTS) || defined(FLOATS)
#include "decoding.h"
#endif

namespace {

// Of the sequence that reads `now`; the thread's next one reads `next`, and `ahead` what it will.
template <typename Q, typename T>
void attend_heads(const Q *queries, const T *cache, const Reads &now, const Reads &next,
                  const Layout &is, Ahead &ahead, Q *out) {
#if defined(DOTS) || defined(FLOATS)
  if constexpr (std::is_same_v<Q, Number> && std::is_same_v<T, bf16>) {
    if (is.block % 16 == 0 && (is.dim == 64 || is.dim == 128)) {
      ahead.begin(now, next);
      const auto some = is.dim == 64 ? attend_sixteens<64> : attend_sixteens<128>;
      return some(queries, cache, now, is, ahead, out);
    }
  }
#endif
  const auto one = is.dim == 64    ? attend<Q, T, 64>
                   : is.dim == 128 ? attend<Q, T, 128>
                                   : attend<Q, T, 0>;
  for (Index head = now.kv_head; head < now.kv_head + now.some; ++head) {
    one(queries, cache, now.table, now.context, head, is, out);
  }
}

// KV heads of one item of work, where `rows` sequences decode on `threads` threads: as many as fit,
// unless that would leave threads without work.
inline Index heads_together(const Layout &is, Index rows, Index threads) {
  if (rows < 4 * threads) return 1;
  const Index most = std::max<Index>(1, MOST_HEADS / (is.heads / is.kv_heads));
  Index some = std::min(most, is.kv_heads);
  while (is.kv_heads % some) --some;
  return some;
}

}  // namespace
