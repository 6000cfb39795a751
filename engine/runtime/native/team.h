// Threads that go through the phases of a step together.
#pragma once

#include <atomic>
#include <memory>
#include <sched.h>

#include "numbers.h"

namespace {

// How long to spin at the end of a phase, about 25 us, before offering the core to others.
constexpr int SPINS = 500;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Team {
 public:
  // `room` is for what members tell each other between phases.
  Team(Index phases, void *room) : next_(new Counter[phases]), room_(room) {}

  void *room() const { return room_; }

  Index take(Index phase) { return next_[phase].value.fetch_add(1, std::memory_order_relaxed); }

  // Returns once all of `threads` are here.
  void meet(int threads) {
    const Index round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < SPINS) {
        pause();
      } else {
        sched_yield();
      }
    }
  }

 private:
  struct alignas(64) Counter {
    std::atomic<Index> value{0};
  };

  const std::unique_ptr<Counter[]> next_;
  void *const room_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<Index> round_{0};
};

// One thread's place in the team. Whoever is free takes the next item, so that a thread that lost its
// core to somebody else holds up no more than the item it has begun.
class Member {
 public:
  Member(Team &team, int threads) : team_(team), threads_(threads) {}

  int threads() const { return threads_; }

  template <typename T>
  T *room() const {
    return static_cast<T *>(team_.room());
  }

  // Every thread calls this for the same phases in the same order. `work(item, next)` is told what
  // this thread will do next, so that it can be fetched meanwhile; `next` may be beyond the last.
  template <typename Work>
  void share(Index items, Work work) {
    Index item = team_.take(phase_);
    while (item < items) {
      const Index next = team_.take(phase_);
      work(item, next);
      item = next;
    }
    ++phase_;
    team_.meet(threads_);
  }

  // The same by rows; `work` is given one at a time.
  template <typename Work>
  void share_rows(Index rows, Work work) {
    constexpr Index TOGETHER = 4;
    share((rows + TOGETHER - 1) / TOGETHER, [&](Index item, Index) {
      const Index end = std::min(rows, (item + 1) * TOGETHER);
      for (Index row = item * TOGETHER; row < end; ++row) work(row);
    });
  }

 private:
  Team &team_;
  const int threads_;
  Index phase_ = 0;
};

}  // namespace
