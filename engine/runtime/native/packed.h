// Matrix products with weights in panels, by the bfloat16 dot products of AVX-512.
//
// A panel holds 16 outputs: for each pair of inputs, the pair of all 16, 64 bytes. Panels lie one
// after another and are used in pairs, so that every row's pair of inputs, which must be broadcast,
// serves two products.
#pragma once

#include "team.h"

namespace {

constexpr Index LANES = 16;
constexpr Index COLUMNS = 2 * LANES;  // of one item of work
constexpr Index MOST_ROWS = 12;       // rows whose sums are kept in registers: 24 of 32
constexpr Index ROWS_TOGETHER = 192;  // rows of one item: what they read stays in the second cache

// Broadcasts a pair of inputs to all outputs.
inline __m512bh pair_of(const char *at) {
  int32_t pair;
  std::memcpy(&pair, at, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// finish(m, low, high) with the products of row m, at x + m * stride, with two panels. Meanwhile
// asks for `lines` cache lines of what comes next for each pair of inputs.
template <int ROWS, typename Finish>
inline void dot_panels(const bf16 *x, Index stride, const bf16 *panels, Index pairs,
                       const char *ahead, int lines, const Finish &finish) {
  const bf16 *first = panels, *second = panels + pairs * COLUMNS, *const end = second;
  const Index step = stride * sizeof(bf16);
  // a pointer serves three rows; for one each there are not enough registers
  const char *r0 = reinterpret_cast<const char *>(x), *r1 = r0 + 3 * step, *r2 = r1 + 3 * step,
             *r3 = r2 + 3 * step;
  __m512 low[ROWS], high[ROWS];
#pragma GCC unroll 12
  for (int m = 0; m < ROWS; ++m) low[m] = high[m] = _mm512_setzero_ps();
  for (; first != end; first += COLUMNS, second += COLUMNS) {
    if (lines) {
      __builtin_prefetch(ahead, 0, 2);
      if (lines == 2) __builtin_prefetch(ahead + 64, 0, 2);
      ahead += 64 * lines;
    }
    const __m512bh a = (__m512bh)_mm512_loadu_si512(first);
    const __m512bh b = (__m512bh)_mm512_loadu_si512(second);
#pragma GCC unroll 12
    for (int m = 0; m < ROWS; ++m) {
      const char *row = m < 3 ? r0 : m < 6 ? r1 : m < 9 ? r2 : r3;
      const __m512bh both = pair_of(row + m % 3 * step);
      low[m] = _mm512_dpbf16_ps(low[m], a, both);
      high[m] = _mm512_dpbf16_ps(high[m], b, both);
    }
    r0 += 4, r1 += 4, r2 += 4, r3 += 4;
    // else the compiler makes a pointer for each row after all
    asm("" : "+r"(r0), "+r"(r1), "+r"(r2), "+r"(r3));
  }
#pragma GCC unroll 12
  for (int m = 0; m < ROWS; ++m) finish(m, low[m], high[m]);
}

// finish(m, low, high) for each of at most MOST_ROWS rows.
template <typename Finish>
inline void few_rows(Index rows, const bf16 *x, Index stride, const bf16 *panels, Index pairs,
                     const char *ahead, int lines, const Finish &finish) {
  switch (rows) {
#define CASE(n) \
  case n:       \
    return dot_panels<n>(x, stride, panels, pairs, ahead, lines, finish);
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
    CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
  }
}

// finish(row, low, high) for all rows, in parts of nearly equal size. The first two parts fetch the
// panels at `next`, unless that is null.
template <typename Finish>
inline void many_rows(Index rows, const bf16 *x, Index stride, const bf16 *panels, Index pairs,
                      const bf16 *next, const Finish &finish) {
  const Index parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
  const char *ahead = reinterpret_cast<const char *>(next);
  for (Index part = 0; part < parts; ++part) {
    const Index begin = rows * part / parts, end = rows * (part + 1) / parts;
    const int lines = ahead == nullptr || part > 1 ? 0 : parts == 1 ? 2 : 1;
    few_rows(end - begin, x + begin * stride, stride, panels, pairs, ahead + part * pairs * 64,
             lines, [&](Index m, __m512 low, __m512 high) { finish(begin + m, low, high); });
  }
}

// finish(row, column, low, high) with the products of each of `rows` rows of `x` [rows, size] with
// each 32 of the `columns` outputs of `weight`.
template <typename Finish>
void product(Member &me, const bf16 *x, Index rows, Index size, const bf16 *weight, Index columns,
             const Finish &finish) {
  const Index pairs = size / 2, chunks = columns / COLUMNS, chunk_size = COLUMNS * size;
  const Index parts = (rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
  me.share(chunks * parts, [&](Index item, Index following) {
    const Index part = item / chunks, chunk = item % chunks;
    const Index begin = rows * part / parts, end = rows * (part + 1) / parts;
    const bf16 *next =
        following < chunks * parts ? weight + following % chunks * chunk_size : nullptr;
    many_rows(end - begin, x + begin * size, size, weight + chunk * chunk_size, pairs, next,
              [&](Index row, __m512 low, __m512 high) {
                finish(begin + row, chunk * COLUMNS, low, high);
              });
  });
}

inline __m512 biased(__m512 sum, const float *bias, Index column) {
  return bias == nullptr ? sum : _mm512_add_ps(sum, _mm512_loadu_ps(bias + column));
}

// Writes sums to [rows, columns].
struct Write {
  bf16 *out;
  Index columns;
  const float *bias;
  void operator()(Index row, Index column, __m512 low, __m512 high) const {
    const __m512bh both = _mm512_cvtne2ps_pbh(biased(high, bias, column + LANES),
                                              biased(low, bias, column));
    _mm512_storeu_si512(out + row * columns + column, (__m512i)both);
  }
};

// Adds sums to the residual stream [rows, columns].
struct Add {
  float *stream;
  Index columns;
  const float *bias;
  void operator()(Index row, Index column, __m512 low, __m512 high) const {
    float *to = stream + row * columns + column;
    _mm512_storeu_ps(to, _mm512_loadu_ps(to) + biased(low, bias, column));
    _mm512_storeu_ps(to + LANES, _mm512_loadu_ps(to + LANES) + biased(high, bias, column + LANES));
  }
};

// Writes silu(gate) * up to [rows, columns]: panels of gate and up take turns.
struct Activate {
  bf16 *out;
  Index columns;
  const float *bias;
  void operator()(Index row, Index column, __m512 low, __m512 high) const {
    const __m512 gate = biased(low, bias, column), up = biased(high, bias, column + LANES);
    const __m512 both = gate / (_mm512_set1_ps(1.0f) + exp_lanes(-gate)) * up;
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + row * columns + column / 2),
                        (__m256i)_mm512_cvtneps_pbh(both));
  }
};

}  // namespace
