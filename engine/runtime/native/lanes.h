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
