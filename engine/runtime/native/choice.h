// Which attention a decoding sequence gets.
#pragma once

#include "attention.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512BF16__)
#define DOTS 1
#include "decoding.h"
#endif

namespace {

// Of a sequence of `context` tokens for `some` KV heads from `kv_head` on.
template <typename T>
void attend_heads(const T *queries, const T *cache, const int32_t *table, Index context,
                  Index kv_head, Index some, const Layout &is, T *out) {
#ifdef DOTS
  if constexpr (sizeof(T) == sizeof(bf16)) {
    if (is.block % 16 == 0 && is.dim == 64) {
      return attend_sixteens<64>(queries, cache, table, context, kv_head, some, is, out);
    }
    if (is.block % 16 == 0 && is.dim == 128) {
      return attend_sixteens<128>(queries, cache, table, context, kv_head, some, is, out);
    }
  }
#endif
  const auto one = is.dim == 64 ? attend<T, 64> : is.dim == 128 ? attend<T, 128> : attend<T, 0>;
  for (Index head = kv_head; head < kv_head + some; ++head) {
    one(queries, cache, table, context, head, is, out);
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
