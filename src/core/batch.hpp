// Sketched rows as a kernel reads them: a few at a time, in its own types.
#pragma once

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
        convert(static_cast<const uint16_t*>(sketch.indices) + index, q, to_index);
      else
        convert(static_cast<const uint32_t*>(sketch.indices) + index, q, to_index);
    }
  }

  template <class From, class To>
  static SKETCHMIX_INLINE void convert(const From* from, size_t n, To* to) {
    for (size_t j = 0; j < n; ++j) to[j] = static_cast<To>(from[j]);
  }
};

}  // namespace sketchmix::SKETCHMIX_LEVEL
