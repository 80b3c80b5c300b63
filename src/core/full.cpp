// One pass of EM under covariances of any form. A row's kept entries have the kept block of S for covariance,
// which is another matrix for each row: all that this costs is the factorisation of small matrices.
//
// Lanes are rows: a vector holds one entry of as many rows' matrices as it has lanes, so that nothing in a
// factorisation depends on which entries a row kept. Arithmetic is in float64.
//
// A batch's densities come first. Then each covariance meets the rows that have a share in its components, and
// only those, closed up into whole vectors: with components apart, most of the inverses are never computed.
#include <cmath>

#include "batch.hpp"
#include "kernels.hpp"
#include "scratch.hpp"
#include "simd.hpp"

namespace sketchmix::SKETCHMIX_LEVEL {
namespace {

constexpr size_t lanes = static_cast<size_t>(native_lanes<double>);
using V = Vec<double, static_cast<int>(lanes)>;
using Integers = Vec<int64_t, static_cast<int>(lanes)>;

constexpr size_t batch_rows = 512;
// A responsibility below this adds nothing that float64 resolves.
constexpr double negligible = 1e-16;
// Of a diagonal entry, what is left as its pivot where rounding leaves less.
constexpr double smallest_pivot = 1e-15;

// The logarithm of a product of positive numbers: their mantissas are multiplied, their exponents added.
class LogOfProduct {
 public:
  SKETCHMIX_INLINE void multiply(V factor) {
    product_ *= factor;
    const Integers bits = load<Integers>(&product_);
    exponent_ += (bits >> 52) - 1023;
    const Integers mantissa = (bits & 0xfffffffffffff) | int64_t{1023} << 52;
    product_ = load<V>(&mantissa);
  }
  V value() const {
    V out;
    for (size_t l = 0; l < lanes; ++l)
      out[l] = std::log(product_[l]) + 0.69314718055994530942 * static_cast<double>(exponent_[l]);
    return out;
  }

 private:
  V product_ = V{} + 1;
  Integers exponent_{};
};

SKETCHMIX_INLINE V reciprocal_root(V x) {
  V root;
  for (size_t l = 0; l < lanes; ++l) root[l] = std::sqrt(x[l]);
  return 1 / root;
}

// Some rows of a batch, one to a lane.
struct LaneRows {
  size_t q;
  double* x;      // q x lanes
  int64_t* kept;  // q x lanes

  // Lanes without a row of their own repeat the last one's.
  void read(const Batch<double>& batch, const uint32_t* rows, size_t n) {
    for (size_t l = 0; l < lanes; ++l) {
      const size_t row = rows[l < n ? l : n - 1];
      for (size_t i = 0; i < q; ++i) {
        x[i * lanes + l] = batch.row(row)[i];
        kept[i * lanes + l] = batch.kept(row)[i];
      }
    }
  }

  V deviation(const FullGaussians& g, size_t i, size_t k) const {
    V mean;
    for (size_t l = 0; l < lanes; ++l)
      mean[l] = g.means[static_cast<size_t>(kept[i * lanes + l]) * g.n_components + k];
    return load<V>(x + i * lanes) - mean;
  }

  // Where the entry (i, j) of the kept block lies in a matrix of p columns.
  SKETCHMIX_INLINE Integers place(size_t i, size_t j, size_t p) const {
    return load<Integers>(kept + i * lanes) * static_cast<int64_t>(p) + load<Integers>(kept + j * lanes);
  }
};

// One symmetric or lower triangular q x q matrix in each lane: packed row after row, an entry is a vector.
struct Triangles {
  size_t q;
  double* entries;

  static size_t n_entries(size_t q) { return q * (q + 1) / 2; }
  SKETCHMIX_INLINE double* row(size_t i) const { return entries + n_entries(i) * lanes; }
  SKETCHMIX_INLINE V get(size_t i, size_t j) const { return load<V>(row(i) + j * lanes); }
  SKETCHMIX_INLINE void set(size_t i, size_t j, V entry) const { store(row(i) + j * lanes, entry); }

  // The kept blocks of a p x p matrix.
  void gather(const LaneRows& rows, const double* matrix, size_t p) const {
    for (size_t i = 0; i < q; ++i)
      for (size_t j = 0; j <= i; ++j) {
        const Integers from = rows.place(i, j, p);
        V entry;
        for (size_t l = 0; l < lanes; ++l) entry[l] = matrix[from[l]];
        set(i, j, entry);
      }
  }

  // S becomes L with S = L L^T, its diagonal inverted. Returns log |S|.
  V factor() const {
    LogOfProduct determinant;
    for (size_t j = 0; j < q; ++j) {
      V squares{};
      for (size_t m = 0; m < j; ++m) squares += get(j, m) * get(j, m);
      const V diagonal = get(j, j);
      const V pivot = maximum(diagonal - squares, diagonal * smallest_pivot);
      determinant.multiply(pivot);
      set(j, j, reciprocal_root(pivot));
      size_t i = j + 1;
      for (; i + 4 <= q; i += 4) factor_column<4>(i, j);
      for (; i < q; ++i) factor_column<1>(i, j);
    }
    return determinant.value();
  }

  // B rows of column j, so that B sums run at a time and share what they load.
  template <int B>
  SKETCHMIX_INLINE void factor_column(size_t i, size_t j) const {
    const double *above = row(j), *rows[B];
    V sum[B] = {};
    for (size_t b = 0; b < B; ++b) rows[b] = row(i + b);
    for (size_t m = 0; m < j; ++m) {
      const V shared = load<V>(above + m * lanes);
#pragma GCC unroll 4
      for (size_t b = 0; b < B; ++b) sum[b] += load<V>(rows[b] + m * lanes) * shared;
    }
    for (size_t b = 0; b < B; ++b) set(i + b, j, (get(i + b, j) - sum[b]) * get(j, j));
  }

  // d becomes L^-1 d.
  void solve(double* d) const {
    for (size_t j = 0; j < q; ++j) {
      const V y = load<V>(d + j * lanes) * get(j, j);
      store(d + j * lanes, y);
      for (size_t i = j + 1; i < q; ++i) store(d + i * lanes, load<V>(d + i * lanes) - get(i, j) * y);
    }
  }

  // y becomes L^-T y.
  void solve_transposed(double* y) const {
    for (size_t i = q; i-- > 0;) {
      const V u = load<V>(y + i * lanes) * get(i, i);
      store(y + i * lanes, u);
      for (size_t j = 0; j < i; ++j) store(y + j * lanes, load<V>(y + j * lanes) - get(i, j) * u);
    }
  }

  // L becomes X = L^-1: a column follows from those after it, and its entries from the last to the first.
  void invert() const {
    for (size_t j = q; j-- > 0;) {
      size_t end = q;
      for (; end >= j + 5; end -= 4) invert_column<4>(end - 4, j);
      for (; end > j + 1; --end) invert_column<1>(end - 1, j);
    }
  }

  template <int B>
  SKETCHMIX_INLINE void invert_column(size_t i, size_t j) const {
    const double* rows[B];
    V sum[B] = {};
    for (size_t b = 0; b < B; ++b) rows[b] = row(i + b);
    for (size_t m = j + 1; m <= i; ++m) {
      const V shared = get(m, j);
#pragma GCC unroll 4
      for (size_t b = 0; b < B; ++b) sum[b] += load<V>(rows[b] + m * lanes) * shared;
    }
    for (size_t b = 1; b < B; ++b)
      for (size_t m = i + 1; m <= i + b; ++m) sum[b] += load<V>(rows[b] + m * lanes) * get(m, j);
    for (size_t b = 0; b < B; ++b) set(i + b, j, -get(j, j) * sum[b]);
  }

  // X becomes X^T X, the inverse of S: row i needs the rows from i on, its own diagonal entry last.
  void square() const {
    for (size_t i = 0; i < q; ++i) {
      size_t j = 0;
      for (; j + 4 <= i + 1; j += 4) square_row<4>(i, j);
      for (; j <= i; ++j) square_row<1>(i, j);
    }
  }

  template <int B>
  SKETCHMIX_INLINE void square_row(size_t i, size_t j) const {
    V sum[B] = {};
    for (size_t m = i; m < q; ++m) {
      const double* const at = row(m);
      const V shared = load<V>(at + i * lanes);
#pragma GCC unroll 4
      for (size_t b = 0; b < B; ++b) sum[b] += load<V>(at + (j + b) * lanes) * shared;
    }
    for (size_t b = 0; b < B; ++b) set(i, j + b, sum[b]);
  }
};

// The components that have a covariance.
struct Sharing {
  size_t begin, end;

  Sharing(const FullGaussians& g, size_t covariance)
      : begin(g.n_covariances == 1 ? 0 : covariance),
        end(g.n_covariances == 1 ? g.n_components : covariance + 1) {}
  size_t size() const { return end - begin; }
};

// What one thread works with.
struct Workspace {
  const FullGaussians& gaussians;
  Batch<double> batch;
  uint32_t* rows;     // batch_rows: those of the batch that are looked at
  double* densities;  // batch_rows x K, then responsibilities
  LaneRows lane_rows;
  Triangles triangles;
  double* deviations;      // components that share a covariance x q x lanes
  double* responsibility;  // components that share a covariance x lanes

  const double* covariance(size_t c) const {
    return gaussians.covariances + c * gaussians.n_features * gaussians.n_features;
  }
  double* deviation(size_t k) const { return deviations + k * lane_rows.q * lanes; }

  // Deviations of the rows in the lanes from the means, times L^-1.
  void whiten(const Sharing& components) const {
    for (size_t k = 0; k < components.size(); ++k) {
      for (size_t i = 0; i < lane_rows.q; ++i)
        store(deviation(k) + i * lanes, lane_rows.deviation(gaussians, i, components.begin + k));
      triangles.solve(deviation(k));
    }
  }

  // log weight + log density of the first `n` rows of the batch, into `densities`.
  void find_densities(size_t n) {
    for (size_t i = 0; i < n; ++i) rows[i] = static_cast<uint32_t>(i);
    for (size_t first = 0; first < n; first += lanes) {
      lane_rows.read(batch, rows + first, n - first);
      for (size_t c = 0; c < gaussians.n_covariances; ++c) {
        const Sharing components(gaussians, c);
        triangles.gather(lane_rows, covariance(c), gaussians.n_features);
        const V log_determinant = triangles.factor();
        whiten(components);
        for (size_t k = 0; k < components.size(); ++k) {
          V energy = log_determinant;
          for (size_t i = 0; i < lane_rows.q; ++i) {
            const V y = load<V>(deviation(k) + i * lanes);
            energy += y * y;
          }
          const size_t component = components.begin + k;
          for (size_t l = 0; l < lanes && first + l < n; ++l)
            densities[(first + l) * gaussians.n_components + component] =
                gaussians.log_weights[component] - 0.5 * energy[l];
        }
      }
    }
  }
};

// A shard's sums, and their addition to the totals.
struct ShardSums {
  const FullGaussians& gaussians;
  double* size;       // K
  double* gradient;   // P x K
  double* curvature;  // n_covariances x P x P
  double log_likelihood = 0;

  size_t n_gradient() const { return gaussians.n_features * gaussians.n_components; }
  size_t n_curvature() const { return gaussians.n_covariances * gaussians.n_features * gaussians.n_features; }

  // In place: log densities become responsibilities times the row's weight.
  void soften(double* row, double weight) {
    const size_t n = gaussians.n_components;
    double top = row[0], sum = 0;
    for (size_t k = 1; k < n; ++k) top = row[k] > top ? row[k] : top;
    for (size_t k = 0; k < n; ++k) sum += row[k] = std::exp(row[k] - top);
    for (size_t k = 0; k < n; ++k) size[k] += row[k] *= weight / sum;
    log_likelihood += weight * (top + std::log(sum));
  }

  // Those of the first `n` rows that a covariance's components have a share in.
  size_t choose(const Workspace& work, const Sharing& components, size_t n) const {
    size_t chosen = 0;
    for (size_t i = 0; i < n; ++i) {
      const double* const row = work.densities + i * gaussians.n_components;
      double share = 0;
      for (size_t k = components.begin; k < components.end; ++k) share += row[k];
      work.rows[chosen] = static_cast<uint32_t>(i);
      chosen += share > negligible;
    }
    return chosen;
  }

  void add(Workspace& work, size_t n) {
    for (size_t c = 0; c < gaussians.n_covariances; ++c) {
      const Sharing components(gaussians, c);
      const size_t n_chosen = choose(work, components, n);
      for (size_t first = 0; first < n_chosen; first += lanes)
        add_lanes(work, c, components, work.rows + first, n_chosen - first);
    }
  }

  void add_lanes(Workspace& work, size_t c, const Sharing& components, const uint32_t* rows, size_t n) {
    for (size_t k = 0; k < components.size(); ++k)
      for (size_t l = 0; l < lanes; ++l)
        work.responsibility[k * lanes + l] =
            l < n ? work.densities[rows[l] * gaussians.n_components + components.begin + k] : 0;
    work.lane_rows.read(work.batch, rows, n);
    work.triangles.gather(work.lane_rows, work.covariance(c), gaussians.n_features);
    work.triangles.factor();
    work.whiten(components);
    for (size_t k = 0; k < components.size(); ++k) {
      work.triangles.solve_transposed(work.deviation(k));
      add_gradient(work, k, components.begin + k);
    }
    work.triangles.invert();
    work.triangles.square();
    add_curvature(work, components, curvature + c * gaussians.n_features * gaussians.n_features);
  }

  void add_gradient(const Workspace& work, size_t k, size_t component) {
    const V r = load<V>(work.responsibility + k * lanes);
    for (size_t i = 0; i < work.lane_rows.q; ++i) {
      const V ru = r * load<V>(work.deviation(k) + i * lanes);
      const Integers kept = load<Integers>(work.lane_rows.kept + i * lanes);
      for (size_t l = 0; l < lanes; ++l)
        gradient[static_cast<size_t>(kept[l]) * gaussians.n_components + component] += ru[l];
    }
  }

  void add_curvature(const Workspace& work, const Sharing& components, double* matrix) {
    V weight{};
    for (size_t k = 0; k < components.size(); ++k) weight += load<V>(work.responsibility + k * lanes);
    for (size_t i = 0; i < work.lane_rows.q; ++i)
      for (size_t j = 0; j <= i; ++j) {
        V entry = -weight * work.triangles.get(i, j);
        for (size_t k = 0; k < components.size(); ++k) {
          const double* const u = work.deviation(k);
          entry += load<V>(work.responsibility + k * lanes) * load<V>(u + i * lanes) * load<V>(u + j * lanes);
        }
        const Integers to = work.lane_rows.place(i, j, gaussians.n_features);
        for (size_t l = 0; l < lanes; ++l) matrix[to[l]] += entry[l];
      }
  }

  void move_to(const FullSums& total) {
    move(size, gaussians.n_components, total.size);
    move(gradient, n_gradient(), total.gradient);
    move(curvature, n_curvature(), total.curvature);
    *total.log_likelihood += log_likelihood;
    log_likelihood = 0;
  }

  static void move(double* from, size_t n, double* to) {
    for (size_t i = 0; i < n; ++i) {
      to[i] += from[i];
      from[i] = 0;
    }
  }
};

// The memory of all threads' workspaces.
struct Workspaces {
  const FullGaussians& gaussians;
  size_t q;
  Scratch<double> values, densities, x, entries, deviations, responsibilities;
  Scratch<uint32_t> indices, rows;
  Scratch<int64_t> kept;

  Workspaces(const FullGaussians& g, size_t sketch_size, size_t n)
      : gaussians(g),
        q(sketch_size),
        values(n, batch_rows * q),
        densities(n, batch_rows * g.n_components),
        x(n, q * lanes),
        entries(n, Triangles::n_entries(q) * lanes),
        deviations(n, Sharing(g, 0).size() * q * lanes),
        responsibilities(n, Sharing(g, 0).size() * lanes),
        indices(n, batch_rows * q),
        rows(n, batch_rows),
        kept(n, q * lanes) {}

  Workspace of(size_t thread) const {
    return {gaussians,
            {values.part(thread), indices.part(thread), q},
            rows.part(thread),
            densities.part(thread),
            {q, x.part(thread), kept.part(thread)},
            {q, entries.part(thread)},
            deviations.part(thread),
            responsibilities.part(thread)};
  }
};

}  // namespace

void full_statistics(const FullStatisticsTask& task, int n_threads) {
  const SketchView& sketch = task.sketch;
  const FullGaussians& g = task.gaussians;
  const size_t n_parts = static_cast<size_t>(n_threads), n_shards = shards_of(sketch, task.shard_rows);
  const Workspaces workspaces(g, sketch.sketch_size, n_parts);
  const Scratch<double> sizes(n_parts, g.n_components), gradients(n_parts, g.n_features * g.n_components),
      curvatures(n_parts, g.n_covariances * g.n_features * g.n_features);

#pragma omp parallel num_threads(n_threads)
  {
    const size_t thread = static_cast<size_t>(omp_get_thread_num());
    Workspace work = workspaces.of(thread);
    ShardSums sums{g, sizes.part(thread), gradients.part(thread), curvatures.part(thread)};
#pragma omp for ordered schedule(dynamic, 1)
    for (size_t shard = 0; shard < n_shards; ++shard) {
      const size_t begin = shard * task.shard_rows;
      const size_t end = std::min(begin + task.shard_rows, sketch.n_rows);
      for (size_t first = begin; first < end; first += batch_rows) {
        const size_t last = first + batch_rows < end ? first + batch_rows : end;
        work.batch.read(sketch, first, last);
        work.find_densities(last - first);
        for (size_t i = first; i < last; ++i)
          sums.soften(work.densities + (i - first) * g.n_components,
                      task.sample_weight ? task.sample_weight[i] : 1);
        sums.add(work, last - first);
      }
#pragma omp ordered
      sums.move_to(task.sums);
    }
  }
}

void full_log_density(const FullDensityTask& task, int n_threads) {
  const SketchView& sketch = task.sketch;
  const size_t k = task.gaussians.n_components;
  const size_t n_batches = (sketch.n_rows + batch_rows - 1) / batch_rows;
  const Workspaces workspaces(task.gaussians, sketch.sketch_size, static_cast<size_t>(n_threads));

#pragma omp parallel num_threads(n_threads)
  {
    Workspace work = workspaces.of(static_cast<size_t>(omp_get_thread_num()));
#pragma omp for schedule(static)
    for (size_t b = 0; b < n_batches; ++b) {
      const size_t first = b * batch_rows;
      const size_t last = first + batch_rows < sketch.n_rows ? first + batch_rows : sketch.n_rows;
      work.batch.read(sketch, first, last);
      work.find_densities(last - first);
      std::memcpy(task.log_density + first * k, work.densities, (last - first) * k * sizeof(double));
    }
  }
}

}  // namespace sketchmix::SKETCHMIX_LEVEL
