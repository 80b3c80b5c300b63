// Which entries a row keeps: a pure function of (seed, row number), whatever the batch, thread or machine.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace sketchmix::SKETCHMIX_LEVEL {

// SplitMix64 (Steele, Lea, Flood 2014) used as a counter-based generator: draw j of row i is the finaliser
// of key(i) + j * gamma, and key(i) the finaliser of seed + i * gamma.
constexpr uint64_t golden_gamma = 0x9e3779b97f4a7c15u;

SKETCHMIX_INLINE uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Uniform in [0, range), from the high 52 bits: read as the mantissa of a number in [1, 2). All steps exist as
// vector instructions, which a 128-bit product does not.
SKETCHMIX_INLINE uint32_t below(uint64_t random, double range) {
  const uint64_t bits = random >> 12 | uint64_t{0x3ff} << 52;
  double unit;
  std::memcpy(&unit, &bits, sizeof(unit));
  return static_cast<uint32_t>(static_cast<int64_t>((unit - 1) * range));
}

class MaskDrawer {
 public:
  // `bits` has one bit for each of the n_rotated coordinates, `marks` a zero byte, `kept` room for
  // sketch_size + 4, `drawn` for n_drawn().
  MaskDrawer(const Mask& mask, size_t n_rotated, uint64_t* bits, uint8_t* marks, uint32_t* drawn, uint32_t* kept)
      : mask_(mask),
        n_free_(n_rotated - mask.n_shared),
        n_words_((n_rotated + 63) / 64),
        n_drawn_(n_drawn(mask, n_rotated)),
        inverted_(n_drawn_ != mask.sketch_size - mask.n_shared),
        bits_(bits),
        marks_(marks),
        drawn_(drawn),
        kept_(kept) {}

  // How many are drawn: those to keep among the free coordinates, or those to leave out, whichever are fewer.
  static size_t n_drawn(const Mask& mask, size_t n_rotated) {
    const size_t keep = mask.sketch_size - mask.n_shared, leave_out = n_rotated - mask.sketch_size;
    return keep < leave_out ? keep : leave_out;
  }

  // The kept coordinates of a row, sorted, in `kept`. `meanwhile` is called once for each draw.
  template <class Meanwhile>
  void draw(size_t row, const Meanwhile& meanwhile) {
    if (n_drawn_ == 0 && listed_) return;  // every row keeps the same
    std::memset(bits_, 0, n_words_ * sizeof(uint64_t));
    for (size_t i = 0; i < mask_.n_shared; ++i) flip(bits_, mask_.shared[i]);
    for (size_t i = 0; inverted_ && i < n_free_; ++i) flip(bits_, mask_.free[i]);
    draw_free(row, meanwhile);
    list();
    listed_ = true;
  }

 private:
  static SKETCHMIX_INLINE void flip(uint64_t* bits, uint32_t p) { bits[p >> 6] ^= uint64_t{1} << (p & 63); }

  // Robert Floyd's sampling without replacement: n draws, none repeated. Whether a coordinate was drawn before
  // is asked of a byte of its own: in a bitmap nearly every question would wait for the answer before it.
  template <class Meanwhile>
  SKETCHMIX_INLINE void draw_free(size_t row, const Meanwhile& meanwhile) {
    const size_t n = n_drawn_, first = n_free_ - n;
    const uint32_t* __restrict const free = mask_.free;
    uint32_t* __restrict const drawn = drawn_;
    uint64_t* __restrict const bits = bits_;
    uint8_t* __restrict const marks = marks_;
    const uint64_t counter = mix64(mask_.seed + (mask_.first_row + row) * golden_gamma);
    for (size_t j = 0; j < n; ++j)
      drawn[j] = below(mix64(counter + (j + 1) * golden_gamma), static_cast<double>(first + j + 1));
    for (size_t j = 0; j < n; ++j) {
      const uint32_t candidate = free[drawn[j]];
      const uint32_t p = marks[candidate] ? free[first + j] : candidate;
      marks[p] = 1;
      drawn[j] = p;
      flip(bits, p);
      meanwhile();
    }
    for (size_t j = 0; j < n; ++j) marks[drawn[j]] = 0;
  }

  // Four at a time and without a branch on how many a word holds: what is written past its last bit is
  // overwritten by the next word.
  SKETCHMIX_INLINE void list() {
    uint32_t* out = kept_;
    for (size_t w = 0; w < n_words_; ++w) {
      uint64_t word = bits_[w];
      const int n = __builtin_popcountll(word);
      const uint32_t base = static_cast<uint32_t>(w * 64);
      int written = 0;
      do {
        for (int i = 0; i < 4; ++i) {
          out[written + i] = base + static_cast<uint32_t>(__builtin_ctzll(word | uint64_t{1} << 63));
          word &= word - 1;
        }
        written += 4;
      } while (written < n);
      out += n;
    }
  }

  const Mask& mask_;
  size_t n_free_, n_words_, n_drawn_;
  bool inverted_, listed_ = false;
  uint64_t* bits_;
  uint8_t* marks_;
  uint32_t *drawn_, *kept_;
};

}  // namespace sketchmix::SKETCHMIX_LEVEL
