// bfloat16 numbers, and the exponential of a softmax.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

using Index = int64_t;

struct bf16 {
  uint16_t bits;
};

inline float load(bf16 value) {
  const uint32_t wide = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}

inline float load(float value) { return value; }

inline void store(bf16 *to, float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof wide);
  const uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
  // rounding could carry a NaN's payload into infinity; a quiet NaN stays one
  const uint32_t quiet = (wide >> 16) | 0x40;
  to->bits = static_cast<uint16_t>((wide & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

inline void store(float *to, float value) { *to = value; }

// exp(x) for x <= 0 within 2 units in the last place, and no less than exp(-87). Without branches, so
// that loops over it are vectorised.
inline float exp_negative(float x) {
  const float scaled = std::max(x, -87.0f) * 1.44269504088896341f;
  const int32_t whole = static_cast<int32_t>(scaled);
  const float part = scaled - static_cast<float>(whole);  // in (-1, 0]
  // Taylor series of 2^part = exp(part ln 2) to the 8th power: the rest is below 1e-8
  const float t = part * 0.693147180559945309f;
  float sum = 1.0f / 40320.0f;
  sum = sum * t + 1.0f / 5040.0f;
  sum = sum * t + 1.0f / 720.0f;
  sum = sum * t + 1.0f / 120.0f;
  sum = sum * t + 1.0f / 24.0f;
  sum = sum * t + 1.0f / 6.0f;
  sum = sum * t + 0.5f;
  sum = sum * t + 1.0f;
  sum = sum * t + 1.0f;
  const uint32_t exponent = static_cast<uint32_t>(whole + 127) << 23;
  float power;
  std::memcpy(&power, &exponent, sizeof power);
  return sum * power;
}

#if defined(__AVX512F__) && defined(__AVX512BF16__)
// exp(x) within 3e-6 of its value, far nearer than the bfloat16 that what is made of it is rounded
// to, and no less than exp(-87).
inline __m512 exp_lanes(__m512 x) {
  // a NaN is the second operand of the larger, and stays
  const __m512 scaled = _mm512_max_ps(_mm512_set1_ps(-87.0f), x) * _mm512_set1_ps(1.44269504f);
  const __m512 whole = _mm512_roundscale_ps(scaled, 0), t = scaled - whole;
  // Taylor series of 2^t for |t| <= 1/2
  __m512 sum = _mm512_set1_ps(1.33335581e-3f);
  sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(9.61812911e-3f));
  sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(5.55041087e-2f));
  sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(2.40226507e-1f));
  sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(6.93147181e-1f));
  sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(sum, whole);
}
#endif

}  // namespace
