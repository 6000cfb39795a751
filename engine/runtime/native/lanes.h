// What matrix products and attention are made of: sums of several outputs at once.
//
// `Lanes` is a vector of LANES float32 sums, `Number` the format of what is multiplied with weights.
// Both are whatever the processor is quickest with; weights and the KV cache are bfloat16 with either.
#pragma once

#include "numbers.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512BF16__)
#define DOTS 1
#include "lanes_dots.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define FLOATS 1
#include "lanes_floats.h"
#endif

#if defined(DOTS) || defined(FLOATS)
namespace {

// exp(x) within 7e-6 of its value, far nearer than the bfloat16 that what is made of it is rounded
// to, no less than exp(-87), and above 88 anything large.
inline Lanes exp_lanes(Lanes x) {
  const Lanes scaled = larger(every(-87.0f), x) * every(1.44269504f);
  const Lanes whole = nearest_whole(scaled), t = scaled - whole;
  // Taylor series of 2^t for |t| <= 1/2
  Lanes sum = every(1.33335581e-3f);
  sum = sum * t + every(9.61812911e-3f);
  sum = sum * t + every(5.55041087e-2f);
  sum = sum * t + every(2.40226507e-1f);
  sum = sum * t + every(6.93147181e-1f);
  sum = sum * t + every(1.0f);
  return times_power(sum, whole);
}

}  // namespace
#endif
