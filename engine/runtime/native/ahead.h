// Asks memory for the keys and values that a thread will attend to, shortly before it does.
#pragma once

#include "attention.h"

namespace {

constexpr Index LINE = 64;            // bytes of a cache line
constexpr Index DISTANCE = 24 << 10;  // bytes from what is asked for to what is read

// What attention of one sequence reads: `context` tokens of `some` KV heads from `kv_head` on.
struct Reads {
  const int32_t *table;
  Index context, kv_head, some;
};

// Goes through the memory of one item of work after the other in the order in which it is read, a
// few lines at a time. Many at once would wait for each other, and the computing for all of them.
class Ahead {
 public:
  template <typename T>
  Ahead(const T *cache, const Layout &is)
      : cache_(reinterpret_cast<const char *>(cache)), is_(is), bytes_(is.dim * sizeof(T)) {}

  // The thread reads `now`, and `next` after it unless that has no context.
  void begin(const Reads &now, const Reads &next) {
    next_ = next;
    if (now.table == now_.table && now.kv_head == now_.kv_head) return;  // on its way already
    start(now);
    fetch(DISTANCE / LINE);
  }

  void fetch(Index lines) {
    for (; lines > 0; --lines, at_ += LINE) {
      if (at_ >= end_ && !advance()) return;
      __builtin_prefetch(at_);
    }
  }

 private:
  void start(const Reads &now) {
    now_ = now;
    plane_ = 0;
    at_ = end_ = nullptr;
  }

  // Goes on to the next plane, of keys and then of values in each block. False where none is left.
  bool advance() {
    const Index planes = 2 * now_.some;
    if (plane_ / planes * is_.block >= now_.context) {
      if (next_.context == 0) return false;
      start(next_);
      next_.context = 0;
    }
    const Index first = plane_ / planes * is_.block, of = plane_ % planes;
    const Index head = now_.kv_head + of + (of < now_.some ? 0 : is_.kv_heads - now_.some);
    const Index place = now_.table[first / is_.block] * 2 * is_.kv_heads + head;
    at_ = cache_ + place * is_.block * bytes_;
    end_ = at_ + std::min(is_.block, now_.context - first) * bytes_;
    ++plane_;
    return true;
  }

  const char *const cache_;
  const Layout &is_;
  const Index bytes_;  // of a head
  Reads now_{}, next_{};
  Index plane_ = 0;  // of all that are read, the next
  const char *at_ = nullptr, *end_ = nullptr;
};

}  // namespace
