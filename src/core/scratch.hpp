// Working memory for the threads of one kernel call: one allocation, made (and able to fail) before any
// parallel region, cut into equal parts that start on cache lines.
#pragma once

#include <cstddef>
#include <new>

#include "simd.hpp"

#if defined(_OPENMP)
#include <omp.h>
#else
inline int omp_get_thread_num() { return 0; }
#endif

namespace sketchmix::SKETCHMIX_LEVEL {

constexpr size_t cache_line = 64;

SKETCHMIX_INLINE size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <class T>
class Scratch {
 public:
  Scratch(size_t n_parts, size_t part_size)
      : stride_(round_up(part_size * sizeof(T), cache_line) / sizeof(T)),
        memory_(static_cast<T*>(::operator new(n_parts * stride_ * sizeof(T), std::align_val_t{cache_line}))) {
    std::memset(static_cast<void*>(memory_), 0, n_parts * stride_ * sizeof(T));
  }
  ~Scratch() { ::operator delete(memory_, std::align_val_t{cache_line}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* part(size_t i) const { return memory_ + i * stride_; }

 private:
  size_t stride_;
  T* memory_;
};

}  // namespace sketchmix::SKETCHMIX_LEVEL
