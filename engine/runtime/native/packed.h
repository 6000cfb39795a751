// Matrix products with weights in panels.
//
// A panel holds LANES outputs: for each pair of inputs, the pair of all of them. Panels lie one after
// another and are used in pairs, so that every row's pair of inputs, which must be broadcast, serves
// two products.
#pragma once

#include "lanes.h"
#include "team.h"

namespace {

constexpr Index COLUMNS = 2 * LANES;          // of two panels
constexpr int PAIR_LINES = COLUMNS * 4 / 64;  // cache lines of their weights for a pair of inputs

// finish(m, low, high) with the products of row m, at x + m * stride, with two panels. Meanwhile
// asks for `lines` cache lines of what comes next for each pair of inputs.
template <int ROWS, typename W, typename Finish>
inline void dot_panels(const Number *x, Index stride, const W *panels, Index pairs,
                       const char *ahead, int lines, const Finish &finish) {
  const W *first = panels, *second = panels + pairs * COLUMNS, *const end = second;
  const Index step = stride * sizeof(Number);
  constexpr Index PAIR = 2 * sizeof(Number);
  // a pointer serves three rows; for one each there are not enough registers
  const char *r0 = reinterpret_cast<const char *>(x), *r1 = r0 + 3 * step, *r2 = r1 + 3 * step,
             *r3 = r2 + 3 * step;
  Lanes low[ROWS], high[ROWS];
#pragma GCC unroll 12
  for (int m = 0; m < ROWS; ++m) low[m] = high[m] = every(0.0f);
  for (; first != end; first += COLUMNS, second += COLUMNS) {
    if (lines) {
      __builtin_prefetch(ahead, 0, 2);
      if (lines == 2) __builtin_prefetch(ahead + 64, 0, 2);
      ahead += 64 * lines;
    }
#pragma GCC unroll 2
    for (int half = 0; half < HALVES; ++half) {
      const Weights a = weights_at(first, half), b = weights_at(second, half);
#pragma GCC unroll 12
      for (int m = 0; m < ROWS; ++m) {
        const char *row = m < 3 ? r0 : m < 6 ? r1 : m < 9 ? r2 : r3;
        const Inputs inputs = inputs_at(row + m % 3 * step, half);
        low[m] = multiply_add(low[m], a, inputs);
        high[m] = multiply_add(high[m], b, inputs);
      }
    }
    r0 += PAIR, r1 += PAIR, r2 += PAIR, r3 += PAIR;
    // else the compiler makes a pointer for each row after all
    asm("" : "+r"(r0), "+r"(r1), "+r"(r2), "+r"(r3));
  }
#pragma GCC unroll 12
  for (int m = 0; m < ROWS; ++m) finish(m, low[m], high[m]);
}

// finish(m, low, high) for each of at most MOST_ROWS rows.
template <int ROWS = 1, typename W, typename Finish>
inline void few_rows(Index rows, const Number *x, Index stride, const W *panels, Index pairs,
                     const char *ahead, int lines, const Finish &finish) {
  if (rows == ROWS) return dot_panels<ROWS>(x, stride, panels, pairs, ahead, lines, finish);
  if constexpr (ROWS < MOST_ROWS) {
    few_rows<ROWS + 1>(rows, x, stride, panels, pairs, ahead, lines, finish);
  }
}

// finish(row, low, high) for all rows, in parts of nearly equal size. The first parts fetch the
// panels at `next`, unless that is null.
template <typename W, typename Finish>
inline void many_rows(Index rows, const Number *x, Index stride, const W *panels, Index pairs,
                      const W *next, const Finish &finish) {
  const Index parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
  const char *ahead = reinterpret_cast<const char *>(next);
  for (Index part = 0; part < parts; ++part) {
    const Index begin = rows * part / parts, end = rows * (part + 1) / parts;
    const int lines = ahead == nullptr || part >= PAIR_LINES ? 0 : parts == 1 ? PAIR_LINES : 1;
    few_rows(end - begin, x + begin * stride, stride, panels, pairs, ahead + part * pairs * 64,
             lines, [&](Index m, Lanes low, Lanes high) { finish(begin + m, low, high); });
  }
}

// finish(row, column, low, high) with the products of each of `rows` rows of `x` [rows, size] with
// each COLUMNS of the `columns` outputs of `weight`.
template <typename Finish>
void product_of_panels(Member &me, const Number *x, Index rows, Index size, const bf16 *weight,
                       Index columns, const Finish &finish) {
  const Index pairs = size / 2, chunks = columns / COLUMNS, chunk_size = COLUMNS * size;
  const Index parts = (rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  me.share(chunks * parts, [&](Index item, Index following) {
    const Index part = item / chunks, chunk = item % chunks;
    const Index begin = rows * part / parts, end = rows * (part + 1) / parts;
    const bf16 *next =
        following < chunks * parts ? weight + following % chunks * chunk_size : nullptr;
    many_rows(end - begin, x + begin * size, size, weight + chunk * chunk_size, pairs, next,
              [&](Index row, Lanes low, Lanes high) {
                finish(begin + row, chunk * COLUMNS, low, high);
              });
  });
}

inline Lanes biased(Lanes sum, const float *bias, Index column) {
  return bias == nullptr ? sum : sum + lanes_at(bias + column);
}

// Writes sums to [rows, columns].
template <typename T>
struct Write {
  T *out;
  Index columns;
  const float *bias;
  void operator()(Index row, Index column, Lanes low, Lanes high) const {
    put(out + row * columns + column, biased(low, bias, column),
        biased(high, bias, column + LANES));
  }
};

// Adds sums to the residual stream [rows, columns].
struct Add {
  float *stream;
  Index columns;
  const float *bias;
  void operator()(Index row, Index column, Lanes low, Lanes high) const {
    float *to = stream + row * columns + column;
    put(to, lanes_at(to) + biased(low, bias, column));
    put(to + LANES, lanes_at(to + LANES) + biased(high, bias, column + LANES));
  }
};

// Writes silu(gate) * up to [rows, columns]: panels of gate and up take turns.
struct Activate {
  Number *out;
  Index columns;
  const float *bias;
  void operator()(Index row, Index column, Lanes low, Lanes high) const {
    const Lanes gate = biased(low, bias, column), up = biased(high, bias, column + LANES);
    put(out + row * columns + column / 2, gate / (every(1.0f) + exp_lanes(-gate)) * up);
  }
};

}  // namespace
