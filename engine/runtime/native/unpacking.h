// Matrix products of many rows, for which weights become panels of what is multiplied first.
#pragma once

#include <vector>

#include "packed.h"

namespace {

struct alignas(64) Line {
  Panel numbers[64 / sizeof(Panel)];
};

// As `product_of_panels`, for weights that `unpack(chunk, next, to)` writes to [size, COLUMNS] at `to`
// as two panels, and meanwhile fetches those of chunk `next`, which may be beyond the last.
template <typename Unpack, typename Finish>
void product_unpacked(Member &me, const Number *x, Index rows, Index size, Index columns,
                      const Unpack &unpack, const Finish &finish) {
  const Index chunks = columns / COLUMNS, parts = (rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  me.share(chunks * parts, [&](Index item, Index following) {
    static thread_local std::vector<Line> room;
    room.resize(std::max<std::size_t>(room.size(), COLUMNS * size * sizeof(Panel) / sizeof(Line)));
    Panel *const panels = reinterpret_cast<Panel *>(room.data());
    const Index part = item / chunks, chunk = item % chunks;
    const Index begin = rows * part / parts, end = rows * (part + 1) / parts;
    unpack(chunk, following % chunks, panels);
    many_rows<Panel>(end - begin, x + begin * size, size, panels, size / 2, nullptr,
                     [&](Index row, Lanes low, Lanes high) {
                       finish(begin + row, chunk * COLUMNS, low, high);
                     });
  });
}

}  // namespace
