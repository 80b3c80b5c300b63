// Vectors of L lanes of T, in the vector extensions that GCC and Clang share. A vector that is wider
// than the machine's registers is split by the compiler, so every kernel is written once for all levels.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(SKETCHMIX_AVX512)
#define SKETCHMIX_LEVEL avx512
#define SKETCHMIX_VECTOR_BYTES 64
#elif defined(SKETCHMIX_AVX2)
#define SKETCHMIX_LEVEL avx2
#define SKETCHMIX_VECTOR_BYTES 32
#else
#define SKETCHMIX_LEVEL baseline
#define SKETCHMIX_VECTOR_BYTES 16
#endif

#define SKETCHMIX_INLINE inline __attribute__((always_inline))

// Everything in a kernel's translation unit lives in its level's namespace: no symbol compiled for a
// newer CPU can be the one that the linker keeps for an older one.
namespace sketchmix::SKETCHMIX_LEVEL {

template <class T, int L>
struct VectorOf {
  typedef T type __attribute__((vector_size(L * sizeof(T))));
};
template <class T, int L>
using Vec = typename VectorOf<T, L>::type;

template <class T>
struct BitsOf;
template <>
struct BitsOf<float> {
  using type = int32_t;
};
template <>
struct BitsOf<double> {
  using type = int64_t;
};

template <class T>
constexpr int native_lanes = SKETCHMIX_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <class V>
SKETCHMIX_INLINE V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
SKETCHMIX_INLINE void store(void* to, V v) {
  std::memcpy(to, &v, sizeof(V));
}

template <class T, int L>
SKETCHMIX_INLINE Vec<T, L> splat(T x) {
  return Vec<T, L>{} + x;
}

template <class V>
SKETCHMIX_INLINE V maximum(V a, V b) {
  return a > b ? a : b;
}

// Halving the vector until one lane is left: log2(L) steps, and the same order of additions at every call.
template <class T, int L>
SKETCHMIX_INLINE T sum_lanes(Vec<T, L> v) {
  if constexpr (L == 1) {
    return v[0];
  } else {
    Vec<T, L / 2> low, high;
    std::memcpy(&low, &v, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(low), sizeof(high));
    return sum_lanes<T, L / 2>(low + high);
  }
}

template <class T, int L>
SKETCHMIX_INLINE T max_lanes(Vec<T, L> v) {
  if constexpr (L == 1) {
    return v[0];
  } else {
    Vec<T, L / 2> low, high;
    std::memcpy(&low, &v, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(low), sizeof(high));
    return max_lanes<T, L / 2>(maximum(low, high));
  }
}

// exp(x) for x <= 0. x = n log 2 + r with |r| <= log(2)/2; exp(r) by its Taylor series, whose remainder is
// below the last bit; 2^n by adding n to the exponent. Zero where the result would be subnormal.
template <class T, int L>
SKETCHMIX_INLINE Vec<T, L> exp_nonpositive(Vec<T, L> x) {
  using Bits = typename BitsOf<T>::type;
  constexpr bool single = sizeof(T) == 4;
  constexpr T smallest = single ? T(-87.0) : T(-708.0);
  constexpr T log2_e = T(1.4426950408889634);
  constexpr T log_2_high = single ? T(0.693359375) : T(6.93147180369123816490e-01);
  constexpr T log_2_low = single ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
  constexpr T round_magic = single ? T(12582912.0) : T(6755399441055744.0);
  constexpr int mantissa = single ? 23 : 52;
  constexpr int degree = single ? 7 : 13;

  const Vec<T, L> clamped = maximum(x, splat<T, L>(smallest));
  const Vec<T, L> shifted = clamped * log2_e + round_magic;
  const Vec<T, L> n = shifted - round_magic;
  const Vec<T, L> r = (clamped - n * log_2_high) - n * log_2_low;
  Vec<T, L> series = splat<T, L>(T(1));
#pragma GCC unroll 16
  for (int i = degree; i > 0; --i) series = series * (r * (T(1) / T(i))) + T(1);
  const Vec<Bits, L> exponent = load<Vec<Bits, L>>(&shifted) << mantissa;
  const Vec<Bits, L> scaled = load<Vec<Bits, L>>(&series) + exponent;
  return x > smallest ? load<Vec<T, L>>(&scaled) : Vec<T, L>{};
}

// log(x) for normal x > 0. x = m 2^e with m in [sqrt(1/2), sqrt(2)), and log m = 2 artanh(f), f = (m - 1) / (m +
// 1), by its series, whose remainder is below the last bit.
template <class T, int L>
SKETCHMIX_INLINE Vec<T, L> log_positive(Vec<T, L> x) {
  using Bits = typename BitsOf<T>::type;
  constexpr bool single = sizeof(T) == 4;
  constexpr int mantissa = single ? 23 : 52;
  constexpr Bits sqrt_half = single ? Bits{0x3f3504f3} : static_cast<Bits>(0x3fe6a09e667f3bcd);
  constexpr T log_2 = T(0.69314718055994530942);
  constexpr int n_terms = single ? 6 : 12;

  const Vec<Bits, L> above = load<Vec<Bits, L>>(&x) - sqrt_half;
  const Vec<Bits, L> exponent = above >> mantissa;
  const Vec<Bits, L> scaled = load<Vec<Bits, L>>(&x) - (exponent << mantissa);
  const Vec<T, L> m = load<Vec<T, L>>(&scaled);
  const Vec<T, L> f = (m - T(1)) / (m + T(1)), square = f * f;
  Vec<T, L> series = splat<T, L>(T(1) / T(2 * n_terms + 1));
#pragma GCC unroll 16
  for (int i = n_terms - 1; i >= 0; --i) series = series * square + T(1) / T(2 * i + 1);
  return __builtin_convertvector(exponent, Vec<T, L>) * log_2 + (f + f) * series;
}

template <class T, int L>
SKETCHMIX_INLINE Vec<T, L> square_root(Vec<T, L> x) {
  T lanes[L];
  store(lanes, x);
  for (int i = 0; i < L; ++i) lanes[i] = __builtin_sqrt(lanes[i]);
  return load<Vec<T, L>>(lanes);
}

}  // namespace sketchmix::SKETCHMIX_LEVEL
