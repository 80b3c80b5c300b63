// IEEE binary16 to and from binary32, round to nearest even; by hardware where the level has it.
#pragma once

#include "simd.hpp"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace sketchmix::SKETCHMIX_LEVEL {

#if defined(__F16C__)

SKETCHMIX_INLINE float float_of_half(uint16_t half) { return _cvtsh_ss(half); }
SKETCHMIX_INLINE uint16_t half_of_float(float x) { return static_cast<uint16_t>(_cvtss_sh(x, 0)); }

#else

SKETCHMIX_INLINE float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

SKETCHMIX_INLINE uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// Moved to binary32's place, exponent and mantissa read as a number 2^112 too small; multiplying by 2^112
// mends normal and subnormal numbers alike. Inf and NaN have their exponent set instead.
SKETCHMIX_INLINE float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const float finite = float_of_bits(magnitude) * float_of_bits(239u << 23);
  const uint32_t bits = magnitude >= (0x7c00u << 13) ? magnitude | 0x7f800000u : bits_of_float(finite);
  return float_of_bits(bits | sign);
}

SKETCHMIX_INLINE uint16_t half_of_float(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // beyond 65520: inf
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves x in units of 2^-24 in the low bits, rounded to nearest even.
    const uint32_t sum = bits_of_float(float_of_bits(magnitude) + 0.5f);
    return static_cast<uint16_t>(sign | (sum - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

#endif

}  // namespace sketchmix::SKETCHMIX_LEVEL
