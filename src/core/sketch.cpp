// Rotate and keep: each row is read once, mixed in cache, and only its kept entries are finished and stored.
#include <utility>

#include "half.hpp"
#include "kernels.hpp"
#include "mask.hpp"
#include "scratch.hpp"
#include "simd.hpp"

namespace sketchmix::SKETCHMIX_LEVEL {
namespace {

template <class T>
using Native = Vec<T, native_lanes<T>>;

// R-point Hadamard butterflies in registers, over R vectors that lie `step` entries apart.
template <int R, class T>
SKETCHMIX_INLINE void butterflies(T* x, size_t step) {
  using V = Native<T>;
  V v[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) v[i] = load<V>(x + i * step);
#pragma GCC unroll 4
  for (int half = 1; half < R; half *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      if (i & half) continue;
      const V a = v[i], b = v[i + half];
      v[i] = a + b;
      v[i + half] = a - b;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) store(x + i * step, v[i]);
}

template <int R, class T>
SKETCHMIX_INLINE void pass(T* x, size_t n_runs, size_t stride, size_t distance) {
  for (size_t block = 0; block < n_runs; block += R * distance)
    for (size_t offset = block * stride; offset < (block + distance) * stride; offset += native_lanes<T>)
      butterflies<R>(x + offset, distance * stride);
}

// The unnormalised Walsh-Hadamard transform across the runs: radix 8, then what is left.
template <class T>
void mix_by_butterflies(T* x, size_t n_runs, size_t stride) {
  size_t distance = 1;
  for (; distance * 8 <= n_runs; distance *= 8) pass<8>(x, n_runs, stride, distance);
  if (distance * 4 == n_runs) pass<4>(x, n_runs, stride, distance);
  if (distance * 2 == n_runs) pass<2>(x, n_runs, stride, distance);
}

// out = mix @ x for a lead x lead matrix and `lead` runs: R rows of the product at a time.
template <int R, class T>
SKETCHMIX_INLINE void product_rows(const T* mix, const T* x, T* out, size_t lead, size_t stride) {
  using V = Native<T>;
  for (size_t column = 0; column < stride; column += native_lanes<T>) {
    V sum[R] = {};
    for (size_t j = 0; j < lead; ++j) {
      const V v = load<V>(x + j * stride + column);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] += mix[r * lead + j] * v;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store(out + r * stride + column, sum[r]);
  }
}

template <class T>
void mix_by_matrix(const T* mix, const T* x, T* out, size_t lead, size_t stride) {
  size_t row = 0;
  for (; row + 8 <= lead; row += 8) product_rows<8>(mix + row * lead, x, out + row * stride, lead, stride);
  for (; row < lead; ++row) product_rows<1>(mix + row * lead, x, out + row * stride, lead, stride);
}

// Lanes of the result are the sums of the L vectors: L - 1 interleave-and-add steps for all of them together.
template <class T, int L, int... lane>
SKETCHMIX_INLINE Vec<T, L> sum_each(Vec<T, L>* v, std::integer_sequence<int, lane...>) {
  using V = Vec<T, L>;
#pragma GCC unroll 4
  for (int n = L / 2; n > 0; n /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      const V a = v[i], b = v[i + n];
      v[i] = __builtin_shufflevector(a, b, (lane / 2 + lane % 2 * L)...) +
             __builtin_shufflevector(a, b, (L / 2 + lane / 2 + lane % 2 * L)...);
    }
  }
  return v[0];
}

// `n` entries of the row in their places, with their signs.
template <class T>
SKETCHMIX_INLINE void place(const Rotation<T>& rotation, const T* __restrict row, size_t first, size_t n,
                            T* __restrict out) {
  const T* __restrict const signs = rotation.signs;
  if (rotation.order) {
    const uint32_t* __restrict const order = rotation.order + first;
    for (size_t j = 0; j < n; ++j) out[j] = row[order[j]] * signs[order[j]];
  } else {
    for (size_t j = 0; j < n; ++j) out[j] = row[first + j] * signs[first + j];
  }
}

// The row as `lead` runs of whole vectors, zero beyond each run's end and beyond the row's.
template <class T>
void lay_out(const Rotation<T>& rotation, const T* row, T* out) {
  const size_t run = rotation.run, stride = rotation.stride, n_features = rotation.n_features;
  if (run == stride) {
    place(rotation, row, 0, n_features, out);
    for (size_t j = n_features; j < rotation.lead * run; ++j) out[j] = 0;
    return;
  }
  for (size_t first = 0; first < rotation.lead * run; first += run, out += stride) {
    const size_t left = first < n_features ? n_features - first : 0;
    const size_t n = left < run ? left : run;
    place(rotation, row, first, n, out);
    for (size_t j = n; j < stride; ++j) out[j] = 0;
  }
}

// The kept entries of the rotated row: for each, `terms` dot products of a run with a row of coefficients.
template <class T>
void finish(const Rotation<T>& rotation, const T* mixed, uint32_t* kept, size_t n_kept, T* out) {
  constexpr int L = native_lanes<T>;
  using V = Native<T>;
  for (size_t i = 0; i < static_cast<size_t>(L); ++i) kept[n_kept + i] = kept[n_kept - 1];
  for (size_t first = 0; first < n_kept; first += L) {
    V sums[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) {
      const size_t entry = kept[first + i] * rotation.terms;
      V sum = {};
      for (size_t t = entry; t < entry + rotation.terms; ++t) {
        const T* run = mixed + rotation.segment[t];
        const T* row = rotation.coefficients + rotation.coefficient[t];
        for (size_t j = 0; j < rotation.stride; j += L) sum += load<V>(run + j) * load<V>(row + j);
      }
      sums[i] = sum;
    }
    store(out + first, sum_each<T, L>(sums, std::make_integer_sequence<int, L>{}));
  }
}

// The largest magnitude, as the bits of a T: those of positive numbers, infinity and NaN are in order.
template <class T>
typename BitsOf<T>::type largest_bits(const T* kept, size_t n, typename BitsOf<T>::type largest) {
  using Bits = typename BitsOf<T>::type;
  constexpr Bits magnitude = static_cast<Bits>(~(Bits{1} << (8 * sizeof(Bits) - 1)));
  for (size_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, kept + i, sizeof(bits));
    bits &= magnitude;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

template <class T>
void store_values(const T* kept, size_t n, void* values, Value type, size_t at) {
  if (type == Value::float32) {
    for (size_t i = 0; i < n; ++i) static_cast<float*>(values)[at + i] = static_cast<float>(kept[i]);
  } else if (type == Value::float64) {
    for (size_t i = 0; i < n; ++i) static_cast<double*>(values)[at + i] = static_cast<double>(kept[i]);
  } else {
    for (size_t i = 0; i < n; ++i)
      static_cast<uint16_t*>(values)[at + i] = half_of_float(static_cast<float>(kept[i]));
  }
}

void store_indices(const uint32_t* kept, size_t n, void* indices, Index type, size_t at) {
  if (type == Index::uint16) {
    for (size_t i = 0; i < n; ++i) static_cast<uint16_t*>(indices)[at + i] = static_cast<uint16_t>(kept[i]);
  } else {
    std::memcpy(static_cast<uint32_t*>(indices) + at, kept, n * sizeof(uint32_t));
  }
}

// The next row is on its way while this one is worked on; the hardware's own prefetcher stops at each page.
template <class T>
SKETCHMIX_INLINE void prefetch(const T* row, size_t n) {
  for (size_t j = 0; j < n; j += cache_line / sizeof(T)) __builtin_prefetch(row + j);
}

template <class T>
void sketch(const SketchTask<T>& task, int n_threads) {
  const Rotation<T>& rotation = task.rotation;
  const size_t n_kept = task.mask.sketch_size;
  const size_t laid_out = rotation.lead * rotation.stride;
  const size_t n_parts = static_cast<size_t>(n_threads);
  constexpr size_t margin = 16;  // groups of lanes and of four listed bits may write past the end
  Scratch<T> rows(n_parts, laid_out * (rotation.mix ? 2 : 1));
  Scratch<T> finished(n_parts, n_kept + margin);
  Scratch<uint32_t> kept(n_parts, n_kept + margin);
  Scratch<uint64_t> bits(n_parts, (rotation.n_rotated + 63) / 64);
  using Bits = typename BitsOf<T>::type;
  Bits largest = 0;
  Scratch<uint8_t> marks(n_parts, rotation.n_rotated);
  Scratch<uint32_t> drawn(n_parts, MaskDrawer::n_drawn(task.mask, rotation.n_rotated));

#pragma omp parallel num_threads(n_threads)
  {
    const size_t thread = static_cast<size_t>(omp_get_thread_num());
    T* const row = rows.part(thread);
    T* const mixed = rotation.mix ? row + laid_out : row;
    T* const out = finished.part(thread);
    uint32_t* const list = kept.part(thread);
    MaskDrawer drawer(task.mask, rotation.n_rotated, bits.part(thread), marks.part(thread), drawn.part(thread),
                      list);
#pragma omp for schedule(static) reduction(max : largest)
    for (size_t i = 0; i < task.n_rows; ++i) {
      const T* const raw = task.rows + static_cast<ptrdiff_t>(i) * task.row_stride;
      if (i + 1 < task.n_rows && rotation.lead != 0) prefetch(raw + task.row_stride, rotation.n_features);
      drawer.draw(i);
      if (rotation.lead == 0) {
        for (size_t j = 0; j < n_kept; ++j) out[j] = raw[list[j]];
      } else {
        lay_out(rotation, raw, row);
        if (rotation.mix)
          mix_by_matrix(rotation.mix, row, mixed, rotation.lead, rotation.stride);
        else
          mix_by_butterflies(row, rotation.lead, rotation.stride);
        finish(rotation, mixed, list, n_kept, out);
      }
      largest = largest_bits(out, n_kept, largest);
      store_values(out, n_kept, task.values, task.value_type, i * n_kept);
      store_indices(list, n_kept, task.indices, task.index_type, i * n_kept);
    }
  }
  T magnitude;
  std::memcpy(&magnitude, &largest, sizeof(magnitude));
  *task.largest = static_cast<double>(magnitude);
}

}  // namespace

void sketch_float(const SketchTask<float>& task, int n_threads) { sketch(task, n_threads); }
void sketch_double(const SketchTask<double>& task, int n_threads) { sketch(task, n_threads); }

}  // namespace sketchmix::SKETCHMIX_LEVEL
