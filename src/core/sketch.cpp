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

// Fetches the next row while this one is worked on, a line now and then: many at once would wait for each other,
// and the work for them. (The hardware's own prefetcher stops at each page.) To go on beyond the row does no harm.
class Ahead {
 public:
  explicit Ahead(const void* row) : next_(static_cast<const char*>(row)) {}

  template <int lines>
  SKETCHMIX_INLINE void fetch() {
#pragma GCC unroll 4
    for (int i = 0; i < lines; ++i) __builtin_prefetch(next_ + i * cache_line);
    next_ += lines * cache_line;
  }

 private:
  const char* next_;
};

// The R-point Walsh-Hadamard transform of R vectors.
template <int R, class V>
SKETCHMIX_INLINE void butterflies(V* v) {
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
}

// The first pass, across R neighbouring runs, which takes them from the row itself and gives them their signs.
template <int R, class T>
SKETCHMIX_INLINE void first_pass(const Rotation<T>& rotation, const T* row, T* x, Ahead& ahead) {
  using V = Native<T>;
  const size_t run = rotation.run, stride = rotation.stride;
  for (size_t m = 0; m < rotation.lead; m += R) {
    for (size_t column = 0; column < stride; column += native_lanes<T>) {
      V v[R];
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
        v[i] = load<V>(row + (m + i) * run + column) * load<V>(rotation.signs + (m + i) * stride + column);
      butterflies<R>(v);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) store(x + (m + i) * stride + column, v[i]);
      ahead.fetch<2>();
    }
  }
}

// A later pass, across R runs that lie `distance` runs apart.
template <int R, class T>
SKETCHMIX_INLINE void later_pass(T* x, size_t n_runs, size_t stride, size_t distance, Ahead& ahead) {
  using V = Native<T>;
  for (size_t block = 0; block < n_runs; block += R * distance) {
    for (T* at = x + block * stride; at < x + (block + distance) * stride; at += native_lanes<T>) {
      V v[R];
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) v[i] = load<V>(at + i * distance * stride);
      butterflies<R>(v);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) store(at + i * distance * stride, v[i]);
      ahead.fetch<2>();
    }
  }
}

// The unnormalised Walsh-Hadamard transform across the runs of a row: radix 8, then what is left.
template <class T>
void mix_by_butterflies(const Rotation<T>& rotation, const T* row, T* x, Ahead& ahead) {
  const size_t n = rotation.lead, stride = rotation.stride;
  if (n == 1) return first_pass<1>(rotation, row, x, ahead);
  if (n == 2) return first_pass<2>(rotation, row, x, ahead);
  if (n == 4) return first_pass<4>(rotation, row, x, ahead);
  first_pass<8>(rotation, row, x, ahead);
  size_t distance = 8;
  for (; distance * 8 <= n; distance *= 8) later_pass<8>(x, n, stride, distance, ahead);
  if (distance * 4 == n) later_pass<4>(x, n, stride, distance, ahead);
  if (distance * 2 == n) later_pass<2>(x, n, stride, distance, ahead);
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

// The row's entries in their places, with their signs, which are zero where there is no entry.
template <class T>
void lay_out(const Rotation<T>& rotation, const T* __restrict row, T* __restrict out, Ahead& ahead) {
  if (rotation.order) {
    const size_t n = rotation.lead * rotation.stride;
    for (size_t j = 0; j < n; ++j) out[j] = row[rotation.order[j]] * rotation.signs[j];
  } else {
    first_pass<1>(rotation, row, out, ahead);
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

// Rows as `Rotation` wants to read them: with whole vectors from the start of each run, beyond the end of the row.
// That is the next row, if rows follow each other; elsewhere the row is copied.
template <class T>
class Readable {
 public:
  Readable(const SketchTask<T>& task, size_t n_parts)
      : task_(task),
        reach_(task.rotation.lead == 0 || task.rotation.order
                   ? task.rotation.n_features
                   : (task.rotation.lead - 1) * task.rotation.run + task.rotation.stride),
        copies_(n_parts, reach_) {}

  const T* row(size_t i, size_t thread) const {
    const size_t n = task_.rotation.n_features;
    const T* const raw = task_.rows + static_cast<ptrdiff_t>(i) * task_.row_stride;
    if (reach_ <= n) return raw;
    const bool together = task_.row_stride == static_cast<ptrdiff_t>(n);
    if (together && (task_.n_rows - i) * n >= reach_) return raw;
    std::memcpy(static_cast<void*>(copies_.part(thread)), raw, n * sizeof(T));
    return copies_.part(thread);
  }

 private:
  const SketchTask<T>& task_;
  size_t reach_;
  Scratch<T> copies_;
};

template <class T>
void sketch(const SketchTask<T>& task, int n_threads) {
  const Rotation<T>& rotation = task.rotation;
  const size_t n_kept = task.mask.sketch_size;
  const size_t laid_out = rotation.lead * rotation.stride;
  const size_t n_parts = static_cast<size_t>(n_threads);
  constexpr size_t margin = 16;  // groups of lanes and of four listed bits may write past the end
  const Readable<T> readable(task, n_parts);
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
#pragma omp for schedule(dynamic, 64) reduction(max : largest)
    for (size_t i = 0; i < task.n_rows; ++i) {
      const T* const raw = readable.row(i, thread);
      Ahead ahead(task.rows + static_cast<ptrdiff_t>(i + 1) * task.row_stride);
      drawer.draw(i, [&] { ahead.fetch<1>(); });
      if (rotation.lead == 0) {
        for (size_t j = 0; j < n_kept; ++j) out[j] = raw[list[j]];
      } else {
        if (rotation.mix) {
          lay_out(rotation, raw, row, ahead);
          mix_by_matrix(rotation.mix, row, mixed, rotation.lead, rotation.stride);
        } else {
          mix_by_butterflies(rotation, raw, mixed, ahead);
        }
        finish(rotation, mixed, list, n_kept, out);
      }
      largest = largest_bits(out, n_kept, largest);
      store_values(out, n_kept, task.values, task.value_type, i * n_kept);
      if (task.indices) store_indices(list, n_kept, task.indices, task.index_type, i * n_kept);
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
