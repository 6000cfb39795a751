// Numbers of either format, and the exponential of a softmax.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

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

}  // namespace
