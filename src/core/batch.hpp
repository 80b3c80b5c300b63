// What the kernels that read a sketch share: a batch of its rows, and the sum of many logarithms.
#pragma once

#include <algorithm>
#include <cmath>

#include "half.hpp"
#include "kernels.hpp"
#include "simd.hpp"

namespace sketchmix::SKETCHMIX_LEVEL {

// Rows [first, last) of the sketch, in the kernel's own types.
template <class T>
struct Batch {
  T* values;
  uint32_t* indices;
  size_t q;

  const T* row(size_t i) const { return values + i * q; }
  const uint32_t* kept(size_t i) const { return indices + i * q; }

  void read(const SketchView& sketch, size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      const ptrdiff_t value = static_cast<ptrdiff_t>(i) * sketch.value_stride;
      const ptrdiff_t index = static_cast<ptrdiff_t>(i) * sketch.index_stride;
      T* const to = values + (i - first) * q;
      uint32_t* const to_index = indices + (i - first) * q;
      if (sketch.value_type == Value::float32)
        convert(static_cast<const float*>(sketch.values) + value, q, to);
      else if (sketch.value_type == Value::float64)
        convert(static_cast<const double*>(sketch.values) + value, q, to);
      else
        for (size_t j = 0; j < q; ++j)
          to[j] = static_cast<T>(
              float_of_half(static_cast<const uint16_t*>(sketch.values)[value + static_cast<ptrdiff_t>(j)]));
      if (sketch.index_type == Index::uint16)
        clip(static_cast<const uint16_t*>(sketch.indices) + index, q, sketch.last_index, to_index);
      else
        clip(static_cast<const uint32_t*>(sketch.indices) + index, q, sketch.last_index, to_index);
    }
  }

  template <class From, class To>
  static SKETCHMIX_INLINE void convert(const From* from, size_t n, To* to) {
    for (size_t j = 0; j < n; ++j) to[j] = static_cast<To>(from[j]);
  }

  template <class From>
  static SKETCHMIX_INLINE void clip(const From* from, size_t n, uint32_t last, uint32_t* to) {
    for (size_t j = 0; j < n; ++j) to[j] = std::min<uint32_t>(from[j], last);
  }
};

// Into how many shards rows are cut.
inline size_t shards_of(const SketchView& sketch, size_t shard_rows) {
  return (sketch.n_rows + shard_rows - 1) / shard_rows;
}

// Sum of w log t. The logarithm of a product of t's takes the place of a logarithm for each row: with t at most
// the number of components, eight factors stay far from the largest double.
class LogSum {
 public:
  SKETCHMIX_INLINE void add(double t, double weight) {
    if (weight != 1) {
      sum_ += weight * std::log(t);
      return;
    }
    product_ *= t;
    if (++n_factors_ == 8) flush();
  }
  double total() {
    flush();
    return sum_;
  }

 private:
  void flush() {
    sum_ += std::log(product_);
    product_ = 1;
    n_factors_ = 0;
  }

  double sum_ = 0, product_ = 1;
  int n_factors_ = 0;
};

}  // namespace sketchmix::SKETCHMIX_LEVEL
