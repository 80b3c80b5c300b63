// What the core offers: plain structs of spans and one table of functions per instruction set.
// Nothing here knows Python; sizes and indices were checked before a kernel is called.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sketchmix {

enum class Value { float16, float32, float64 };
enum class Index { uint16, uint32 };

// How one row is rotated. The row, times its signs, is laid out as `lead` runs of `run` entries; `lead` is
// mixed (by the butterflies of a Hadamard matrix, or by the small dense matrix `mix`), and each *kept* entry
// is then finished by `terms` short dot products with a run. Entries that are not kept are never finished.
// `signs` and `order` lie as the runs do, `stride` apart; a sign is zero where the layout has no entry.
template <class T>
struct Rotation {
  size_t n_features = 0;                  // entries of a raw row
  size_t n_rotated = 0;                   // entries of a rotated row
  size_t lead = 0;                        // 0: no rotation, the kept entries are copied
  size_t run = 0;                         // entries of a run
  size_t stride = 0;                      // of a run in the scratch: `run` rounded up to whole vectors
  size_t terms = 0;                       // dot products that finish one kept entry
  const T* signs = nullptr;               // lead x stride
  const uint32_t* order = nullptr;        // lead x stride: the raw entry that each place takes; null if in order
  const T* mix = nullptr;                 // lead x lead, or null for butterflies
  const uint32_t* segment = nullptr;      // n_rotated x terms: where in the scratch the run starts
  const uint32_t* coefficient = nullptr;  // n_rotated x terms: where in `coefficients` the row starts
  const T* coefficients = nullptr;        // rows of `stride` entries, zero beyond `run`
};

// Which entries row i keeps: the `n_shared` common ones, and sketch_size - n_shared of the free ones,
// drawn without replacement by a generator keyed by (seed, first_row + i).
struct Mask {
  size_t sketch_size = 0;
  uint64_t seed = 0;
  uint64_t first_row = 0;
  const uint32_t* shared = nullptr;  // n_shared, sorted
  size_t n_shared = 0;
  const uint32_t* free = nullptr;  // n_rotated - n_shared, sorted
};

template <class T>
struct SketchTask {
  const T* rows = nullptr;
  ptrdiff_t row_stride = 0;  // in entries
  size_t n_rows = 0;
  Rotation<T> rotation;
  Mask mask;
  void* values = nullptr;  // n_rows x sketch_size
  Value value_type = Value::float32;
  void* indices = nullptr;  // n_rows x sketch_size, or null where nobody asks
  Index index_type = Index::uint16;
  double* largest = nullptr;  // the largest magnitude kept; not finite if any kept entry is not
};

// A read-only sketch. An index stride of 0 repeats one row of indices: dense rows are a sketch that keeps all.
struct SketchView {
  const void* values = nullptr;
  Value value_type = Value::float32;
  ptrdiff_t value_stride = 0;  // in entries
  const void* indices = nullptr;
  Index index_type = Index::uint16;
  ptrdiff_t index_stride = 0;  // in entries
  size_t n_rows = 0;
  size_t sketch_size = 0;
  uint32_t last_index = 0;  // what greater ones are read as; only a file that changes meanwhile can have such
};

// The parameters of K axis-aligned Gaussians in the rotated frame, coordinate-major (P x K).
struct Gaussians {
  size_t n_features = 0;
  size_t n_components = 0;
  const double* log_weights = nullptr;  // K
  const double* means = nullptr;        // P x K
  const double* variances = nullptr;    // P x K (diagonal) or K (spherical)
};

// Where one pass is added up, in float64 and around the given means: to what is there already, a shard after the
// other, so that blocks of whole shards add up to the same bits as all rows at once.
// Densities, here and below, are without their factor (2 pi)^(-sketch_size / 2).
struct Moments {
  double* log_likelihood = nullptr;
  double* size = nullptr;    // K: sum of r
  double* count = nullptr;   // P x K: sum of r over the rows that keep p
  double* first = nullptr;   // P x K: sum of r (x - mean)
  double* second = nullptr;  // P x K (diagonal) or K (spherical): sum of r (x - mean)^2
};

struct StatisticsTask {
  SketchView sketch;
  const double* sample_weight = nullptr;  // n_rows, or null
  Gaussians gaussians;
  bool hard = false;              // r is 1 for the densest component and 0 for the others
  bool double_precision = false;  // of the arithmetic inside a shard
  size_t shard_rows = 1;
  Moments moments;
};

struct DensityTask {
  SketchView sketch;
  Gaussians gaussians;
  bool double_precision = false;
  double* log_density = nullptr;  // n_rows x K: log weight + log density + sketch_size log(2 pi) / 2
};

// K Gaussians with covariances W W^T + s I in the rotated frame.
struct LowRankGaussians {
  size_t n_features = 0;
  size_t n_components = 0;
  size_t rank = 0;
  const double* log_weights = nullptr;  // K
  const double* means = nullptr;        // P x K
  const double* factors = nullptr;      // K x P x rank: W
  const double* noise = nullptr;        // K: s

  // z~ = (z, 1) for the coordinates z of a row in a component, and the lower triangle of z~ z~^T.
  size_t extended() const { return rank + 1; }
  size_t triangle() const { return (rank + 1) * (rank + 2) / 2; }
};

// Sums over rows, in float64 and around the given means, with E over z given the row and the component.
struct LowRankMoments {
  double* log_likelihood = nullptr;
  double* size = nullptr;    // K: sum of r
  double* second = nullptr;  // K x P x triangle: sum of r E[z~ z~^T] over the rows that keep p
  double* cross = nullptr;   // K x P x extended: sum of r (x_p - mean_p) E[z~]
  double* energy = nullptr;  // K: sum of r |(x - mean)_R|^2
};

struct LowRankStatisticsTask {
  SketchView sketch;
  const double* sample_weight = nullptr;  // n_rows, or null
  LowRankGaussians gaussians;
  bool double_precision = false;
  size_t shard_rows = 1;
  LowRankMoments moments;
};

struct LowRankPosteriorTask {
  SketchView sketch;
  LowRankGaussians gaussians;
  bool double_precision = false;
  double* log_density = nullptr;  // n_rows x K
  double* latent = nullptr;       // n_rows x K x rank: E[z], or null where nobody asks
};

// Systems A theta = c with symmetric positive semi-definite A, lower triangles packed row by row.
struct SolveTask {
  size_t n_systems = 0;
  size_t n_unknowns = 0;
  const double* matrices = nullptr;     // n_systems x n_unknowns (n_unknowns + 1) / 2
  const double* right_sides = nullptr;  // n_systems x n_unknowns
  double* solutions = nullptr;          // n_systems x n_unknowns
};

// K Gaussians in the rotated frame with any covariances: one for each component, or one for all.
struct FullGaussians {
  size_t n_features = 0;
  size_t n_components = 0;
  size_t n_covariances = 0;             // K or 1
  const double* log_weights = nullptr;  // K
  const double* means = nullptr;        // P x K
  const double* covariances = nullptr;  // n_covariances x P x P, symmetric
};

// With Lambda the inverse of a row's kept block of S, padded with zeros, and u = Lambda (x - mean). Filled with
// zeros by the caller.
struct FullSums {
  double* log_likelihood = nullptr;
  double* size = nullptr;       // K: sum of r
  double* gradient = nullptr;   // P x K: sum of r u
  double* curvature = nullptr;  // n_covariances x P x P: the lower triangle of the sum of r (u u^T - Lambda)
};

struct FullStatisticsTask {
  SketchView sketch;
  const double* sample_weight = nullptr;  // n_rows, or null
  FullGaussians gaussians;
  size_t shard_rows = 1;
  FullSums sums;
};

struct FullDensityTask {
  SketchView sketch;
  FullGaussians gaussians;
  double* log_density = nullptr;  // n_rows x K: log weight + log density + sketch_size log(2 pi) / 2
};

struct Kernels {
  const char* level;
  void (*sketch_float)(const SketchTask<float>&, int n_threads);
  void (*sketch_double)(const SketchTask<double>&, int n_threads);
  void (*diagonal_statistics)(const StatisticsTask&, int n_threads);
  void (*spherical_statistics)(const StatisticsTask&, int n_threads);
  void (*diagonal_log_density)(const DensityTask&, int n_threads);
  void (*spherical_log_density)(const DensityTask&, int n_threads);
  void (*low_rank_statistics)(const LowRankStatisticsTask&, int n_threads);
  void (*low_rank_posterior)(const LowRankPosteriorTask&, int n_threads);
  void (*solve_each)(const SolveTask&, int n_threads);
  void (*full_statistics)(const FullStatisticsTask&, int n_threads);
  void (*full_log_density)(const FullDensityTask&, int n_threads);
};

namespace baseline {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

}  // namespace sketchmix
