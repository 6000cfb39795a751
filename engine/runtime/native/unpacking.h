// Matrix products of many rows, for which weights of any kind become float32 panels first.
#pragma once

#include <vector>

#include "packed.h"

namespace {

struct alignas(64) Line {
  float numbers[16];
};

// As `product_of_panels`, for weights that `unpack(chunk, next, to)` writes to [size, COLUMNS] at `to`
// as two panels, and meanwhile fetches those of chunk `next`, which may be beyond the last.
template <typename Unpack, typename Finish>
void product_unpacked(Member &me, const float *x, Index rows, Index size, Index columns,
                      const Unpack &unpack, const Finish &finish) {
  const Index chunks = columns / COLUMNS, parts = (rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  me.share(chunks * parts, [&](Index item, Index following) {
    static thread_local std::vector<Line> room;
    room.resize(std::max<std::size_t>(room.size(), COLUMNS * size * sizeof(float) / sizeof(Line)));
    float *const panels = reinterpret_cast<float *>(room.data());
    const Index part = item / chunks, chunk = item % chunks;
    const Index begin = rows * part / parts, end = rows * (part + 1) / parts;
    unpack(chunk, following % chunks, panels);
    many_rows<float>(end - begin, x + begin * size, size, panels, size / 2, nullptr,
                     [&](Index row, Lanes low, Lanes high) {
                       finish(begin + row, chunk * COLUMNS, low, high);
                     });
  });
}

// Of bfloat16 panels.
inline void unpack(const bf16 *panels, Index size, const bf16 *next, float *to) {
  for (Index i = 0; i < size; ++i, panels += COLUMNS, next += COLUMNS, to += COLUMNS) {
    __builtin_prefetch(next, 0, 2);
    put(to, weights_at(panels, 0), weights_at(panels, 1));
  }
}

}  // namespace
