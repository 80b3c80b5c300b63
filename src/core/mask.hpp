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

__extension__ typedef unsigned __int128 uint128_t;

// Uniform in [0, range): the high half of a 128-bit product; its bias, range / 2^64, is out of reach.
SKETCHMIX_INLINE uint64_t below(uint64_t random, uint64_t range) {
  return static_cast<uint64_t>((static_cast<uint128_t>(random) * range) >> 64);
}

class MaskDrawer {
 public:
  // `bits` has one bit for each of the n_rotated coordinates, `kept` room for sketch_size + 4.
  MaskDrawer(const Mask& mask, size_t n_rotated, uint64_t* bits, uint32_t* kept)
      : mask_(mask),
        n_free_(n_rotated - mask.n_shared),
        n_words_((n_rotated + 63) / 64),
        n_kept_free_(mask.sketch_size - mask.n_shared),
        inverted_(2 * n_kept_free_ > n_free_),
        bits_(bits),
        kept_(kept) {}

  // The kept coordinates of a row, sorted, in `kept`.
  void draw(size_t row) {
    if (inverted_) {
      fill(mask_.free, n_free_);  // draw those to leave out
      floyd<false>(row, n_free_ - n_kept_free_);
    } else {
      std::memset(bits_, 0, n_words_ * sizeof(uint64_t));
      floyd<true>(row, n_kept_free_);
    }
    for (size_t i = 0; i < mask_.n_shared; ++i) set(mask_.shared[i]);
    list();
  }

 private:
  SKETCHMIX_INLINE void set(uint32_t p) { bits_[p >> 6] |= uint64_t{1} << (p & 63); }
  SKETCHMIX_INLINE bool has(uint32_t p) const { return (bits_[p >> 6] >> (p & 63)) & 1; }

  void fill(const uint32_t* coordinates, size_t n) {
    std::memset(bits_, 0, n_words_ * sizeof(uint64_t));
    for (size_t i = 0; i < n; ++i) set(coordinates[i]);
  }

  // Robert Floyd's sampling without replacement: n draws, none repeated. Flips the bits that it draws.
  template <bool flipped_is_set>
  SKETCHMIX_INLINE void floyd(size_t row, size_t n) {
    uint64_t counter = mix64(mask_.seed + (mask_.first_row + row) * golden_gamma);
    for (size_t last = n_free_ - n; last < n_free_; ++last) {
      counter += golden_gamma;
      const uint32_t candidate = mask_.free[below(mix64(counter), last + 1)];
      const uint32_t drawn = has(candidate) == flipped_is_set ? mask_.free[last] : candidate;
      bits_[drawn >> 6] ^= uint64_t{1} << (drawn & 63);
    }
  }

  // Four at a time and without a branch on how many a word holds: what is written past its last bit is
  // overwritten by the next word.
  void list() {
    uint32_t* out = kept_;
    for (size_t w = 0; w < n_words_; ++w) {
      uint64_t word = bits_[w];
      const int n = __builtin_popcountll(word);
      const uint32_t base = static_cast<uint32_t>(w * 64);
      int written = 0;
      do {
        for (int i = 0; i < 4; ++i) {
          out[written + i] = base + (static_cast<uint32_t>(__builtin_ctzll(word | uint64_t{1} << 63)) & 63u);
          word &= word - 1;
        }
        written += 4;
      } while (written < n);
      out += n;
    }
  }

  const Mask& mask_;
  size_t n_free_, n_words_, n_kept_free_;
  bool inverted_;
  uint64_t* bits_;
  uint32_t* kept_;
};

}  // namespace sketchmix::SKETCHMIX_LEVEL
