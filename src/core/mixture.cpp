// One pass of EM over a sketch: densities of the kept entries, responsibilities, and what they add up to.
//
// Parameters lie coordinate-major with the components contiguous: the entry that a row kept at coordinate p
// meets all K components in a few vector loads, and the sums over a row stay in registers. Rows go through
// in small batches, so that the second pass (adding the statistics) finds them in the first-level cache.
//
// Shards of rows are summed in the kernel's own precision around the current means, then added to float64
// totals one after the other, in order: the result does not depend on how many threads there are.
#include <cmath>
#include <limits>
#include <type_traits>

#include "batch.hpp"
#include "kernels.hpp"
#include "scratch.hpp"
#include "simd.hpp"

namespace sketchmix::SKETCHMIX_LEVEL {
namespace {

// Lanes are components: L to a vector, `n_blocks` vectors to a coordinate.
template <class T, int L>
struct Lanes {
  size_t n_components;
  size_t n_blocks;

  explicit Lanes(size_t k) : n_components(k), n_blocks((k + L - 1) / L) {}
  size_t padded() const { return n_blocks * L; }
  // A coordinate's record: `fields` vectors for each block, on cache lines of its own.
  size_t record(int fields) const {
    return round_up(n_blocks * L * static_cast<size_t>(fields), cache_line / sizeof(T));
  }
  static size_t slot(size_t k, int fields, int field) {
    return (k / L * static_cast<size_t>(fields) + static_cast<size_t>(field)) * L + k % L;
  }
};

// A diagonal covariance. With s = 1/sqrt(2 v), d = (x - mu) s and l = log(v)/2:
// log N(x; mu, v) + log(2 pi)/2 = -(d^2 + l). (The caller adds the 2 pi, as it would drown small distances.) Sums
// are those of the standardised d; x - mu comes first, as it is exact near the mean however large the mean is.
template <class T, int L>
struct Diagonal {
  static constexpr int n_parameters = 3;  // mu, s, l
  static constexpr int n_sums = 3;        // r, r d, r d^2
  static constexpr bool per_coordinate = true;
  using V = Vec<T, L>;

  static SKETCHMIX_INLINE void set(T* record, size_t k, double mean, double variance) {
    record[Lanes<T, L>::slot(k, 3, 0)] = static_cast<T>(mean);
    record[Lanes<T, L>::slot(k, 3, 1)] = static_cast<T>(1 / std::sqrt(2 * variance));
    record[Lanes<T, L>::slot(k, 3, 2)] = static_cast<T>(0.5 * std::log(variance));
  }
  static SKETCHMIX_INLINE V deviation(const T* block, V x) { return (x - load<V>(block)) * load<V>(block + L); }
  static SKETCHMIX_INLINE V energy(const T* block, V x, V energy) {
    const V d = deviation(block, x);
    return (d * d + load<V>(block + 2 * L)) + energy;
  }
  static SKETCHMIX_INLINE void add(const T* block, V x, V r, V* sums) {
    const V d = deviation(block, x);
    const V rd = r * d;
    sums[0] += r;
    sums[1] += rd;
    sums[2] += rd * d;
  }
};

// A spherical covariance: only the means differ from coordinate to coordinate. The energy is the squared
// distance, and its sum for each component is all that the variance needs.
template <class T, int L>
struct Spherical {
  static constexpr int n_parameters = 1;  // mu
  static constexpr int n_sums = 2;        // r, r d
  static constexpr bool per_coordinate = false;
  using V = Vec<T, L>;

  static SKETCHMIX_INLINE void set(T* record, size_t k, double mean, double) { record[k] = static_cast<T>(mean); }
  static SKETCHMIX_INLINE V deviation(const T* block, V x) { return x - load<V>(block); }
  static SKETCHMIX_INLINE V energy(const T* block, V x, V energy) {
    const V d = deviation(block, x);
    return d * d + energy;
  }
  static SKETCHMIX_INLINE void add(const T* block, V x, V r, V* sums) {
    sums[0] += r;
    sums[1] += r * deviation(block, x);
  }
};

// A batch's entries in the order of their coordinates, and of the rows within each: a counting sort.
template <class T>
struct Transposed {
  size_t n_features;
  uint32_t* ends;  // n_features + 1: where each coordinate's entries end, after a zero
  T* values;
  uint32_t* rows;

  uint32_t begin(size_t p) const { return ends[p]; }
  uint32_t end(size_t p) const { return ends[p + 1]; }

  void sort(const Batch<T>& batch, size_t n_rows) {
    const size_t n = n_rows * batch.q;
    std::memset(ends, 0, (n_features + 1) * sizeof(uint32_t));
    // Counts, shifted by two places, become the places where the next entry of a coordinate goes, shifted by one.
    for (size_t e = 0; e < n; ++e)
      if (batch.indices[e] + 2 <= n_features) ++ends[batch.indices[e] + 2];
    for (size_t p = 2; p <= n_features; ++p) ends[p] += ends[p - 1];
    for (size_t i = 0; i < n_rows; ++i) {
      for (size_t j = 0; j < batch.q; ++j) {
        const uint32_t to = ends[batch.kept(i)[j] + 1]++;
        values[to] = batch.row(i)[j];
        rows[to] = static_cast<uint32_t>(i);
      }
    }
  }
};

// The parameters in the layout of the kernels.
template <template <class, int> class Family, class T, int L>
struct Table {
  using F = Family<T, L>;
  Lanes<T, L> lanes;
  size_t record;
  Scratch<T> records;   // P records
  Scratch<T> constant;  // K: added to scale * energy
  Scratch<T> scale;     // K

  Table(const Gaussians& g, size_t sketch_size, [[maybe_unused]] int n_threads)
      : lanes(g.n_components),
        record(lanes.record(F::n_parameters)),
        records(1, g.n_features * record),
        constant(1, lanes.padded()),
        scale(1, lanes.padded()) {
    const size_t n = g.n_components;
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (size_t p = 0; p < g.n_features; ++p)
      for (size_t k = 0; k < n; ++k)
        F::set(at(p), k, g.means[p * n + k], F::per_coordinate ? g.variances[p * n + k] : g.variances[k]);
    const double q = static_cast<double>(sketch_size);
    for (size_t k = 0; k < lanes.padded(); ++k) {
      const double variance = F::per_coordinate || k >= n ? 1 : g.variances[k];
      constant.part(0)[k] = k < n ? static_cast<T>(g.log_weights[k] - 0.5 * q * std::log(variance))
                                  : -std::numeric_limits<T>::infinity();
      scale.part(0)[k] = static_cast<T>(F::per_coordinate ? -1 : -0.5 / variance);
    }
  }

  T* at(size_t p) const { return records.part(0) + p * record; }

  // Energies of B blocks of components for one row; two sums for each, so that additions overlap.
  template <int B>
  SKETCHMIX_INLINE void energies(const T* x, const uint32_t* kept, size_t q, size_t block, T* out) const {
    using V = Vec<T, L>;
    const T* const base = records.part(0) + block * L * F::n_parameters;
    V even[B] = {}, odd[B] = {};
    size_t j = 0;
    for (; j + 2 <= q; j += 2) {
      const T *const a = base + kept[j] * record, *const b = base + kept[j + 1] * record;
      const V xa = splat<T, L>(x[j]), xb = splat<T, L>(x[j + 1]);
#pragma GCC unroll 4
      for (int i = 0; i < B; ++i) {
        even[i] = F::energy(a + i * L * F::n_parameters, xa, even[i]);
        odd[i] = F::energy(b + i * L * F::n_parameters, xb, odd[i]);
      }
    }
    if (j < q) {
      const T* const a = base + kept[j] * record;
#pragma GCC unroll 4
      for (int i = 0; i < B; ++i) even[i] = F::energy(a + i * L * F::n_parameters, splat<T, L>(x[j]), even[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < B; ++i) store(out + (block + i) * L, even[i] + odd[i]);
  }

  // Energies of all rows of a batch, some blocks of components after the others: what the rows meet again and
  // again is then a part of the table that the second-level cache holds.
  void energies(const Batch<T>& batch, size_t n_rows, T* out) const {
    size_t block = 0;
    for (; block + 4 <= lanes.n_blocks; block += 4) energies<4>(batch, n_rows, block, out);
    for (; block + 2 <= lanes.n_blocks; block += 2) energies<2>(batch, n_rows, block, out);
    if (block < lanes.n_blocks) energies<1>(batch, n_rows, block, out);
  }

  template <int B>
  void energies(const Batch<T>& batch, size_t n_rows, size_t block, T* out) const {
    for (size_t i = 0; i < n_rows; ++i)
      energies<B>(batch.row(i), batch.kept(i), batch.q, block, out + i * lanes.padded());
  }

  // log weight + log density, in place of energies.
  SKETCHMIX_INLINE void to_log_density(T* row) const {
    using V = Vec<T, L>;
    for (size_t k = 0; k < lanes.padded(); k += L)
      store(row + k, load<V>(row + k) * load<V>(scale.part(0) + k) + load<V>(constant.part(0) + k));
  }
};

// A shard's sums, and their addition to the totals.
template <template <class, int> class Family, class T, int L>
struct Sums {
  using F = Family<T, L>;
  using V = Vec<T, L>;
  const Table<Family, T, L>& table;
  size_t record;
  T* records;          // P records of F::n_sums
  double* size;        // K: sum of r
  double* energies;    // K: sum of r times the energy
  double highest = 0;  // sum of the rows' largest log densities
  LogSum totals{};     // and of the logarithms of what all components are, beside the largest

  const T* parameters(size_t p, size_t block) const { return table.at(p) + block * L * F::n_parameters; }
  T* at(size_t p, size_t block) const { return records + p * record + block * L * F::n_sums; }

  // One block of components, or all of a row in one of them: row by row, each entry to its coordinate's record.
  void add_rows(const Batch<T>& batch, size_t n_rows, const T* r) {
    for (size_t i = 0; i < n_rows; ++i) {
      for (size_t block = 0; block < table.lanes.n_blocks; ++block) {
        const V ri = load<V>(r + i * table.lanes.padded() + block * L);
        if (table.lanes.n_blocks > 1 && max_lanes<T, L>(ri) == 0) continue;
        for (size_t j = 0; j < batch.q; ++j) {
          const size_t p = batch.kept(i)[j];
          V sums[F::n_sums];
          load_all<1>(at(p, block), sums);
          F::add(parameters(p, block), splat<T, L>(batch.row(i)[j]), ri, sums);
          store_all<1>(at(p, block), sums);
        }
      }
    }
  }

  // Several blocks: the tables no longer fit the caches, so coordinate by coordinate, whose sums and parameters
  // stay in registers while the batch's entries there go by.
  void add_coordinates(const Transposed<T>& batch, const T* r) {
    for (size_t p = 0; p < batch.n_features; ++p) {
      size_t block = 0;
      for (; block + 4 <= table.lanes.n_blocks; block += 4) add_coordinate<4>(batch, p, block, r);
      for (; block + 2 <= table.lanes.n_blocks; block += 2) add_coordinate<2>(batch, p, block, r);
      if (block < table.lanes.n_blocks) add_coordinate<1>(batch, p, block, r);
    }
  }

  template <int B>
  SKETCHMIX_INLINE void add_coordinate(const Transposed<T>& batch, size_t p, size_t block, const T* r) {
    V sums[B * F::n_sums];
    load_all<B>(at(p, block), sums);
    for (uint32_t e = batch.begin(p); e < batch.end(p); ++e) {
      const V x = splat<T, L>(batch.values[e]);
      const T* const re = r + batch.rows[e] * table.lanes.padded() + block * L;
#pragma GCC unroll 4
      for (int i = 0; i < B; ++i) F::add(parameters(p, block + i), x, load<V>(re + i * L), sums + i * F::n_sums);
    }
    store_all<B>(at(p, block), sums);
  }

  template <int B>
  static SKETCHMIX_INLINE void load_all(const T* from, V* sums) {
#pragma GCC unroll 16
    for (int i = 0; i < B * F::n_sums; ++i) sums[i] = load<V>(from + i * L);
  }

  template <int B>
  static SKETCHMIX_INLINE void store_all(T* to, const V* sums) {
#pragma GCC unroll 16
    for (int i = 0; i < B * F::n_sums; ++i) store(to + i * L, sums[i]);
  }

  // In place: log densities become responsibilities times the row's weight.
  SKETCHMIX_INLINE void soft(T* row, double weight) {
    const size_t n = table.lanes.padded();
    V top = load<V>(row);
    for (size_t k = L; k < n; k += L) top = maximum(top, load<V>(row + k));
    const T largest = max_lanes<T, L>(top);
    V sum = {};
    for (size_t k = 0; k < n; k += L) {
      const V e = exp_nonpositive<T, L>(load<V>(row + k) - largest);
      store(row + k, e);
      sum += e;
    }
    const T total = sum_lanes<T, L>(sum);
    const T factor = static_cast<T>(weight) / total;
    for (size_t k = 0; k < n; k += L) store(row + k, load<V>(row + k) * factor);
    highest += weight * static_cast<double>(largest);
    totals.add(static_cast<double>(total), weight);
  }

  // The same with all of the row given to its densest component (the first of equals).
  SKETCHMIX_INLINE void hard(T* row, double weight) {
    size_t best = 0;
    for (size_t k = 1; k < table.lanes.n_components; ++k)
      if (row[k] > row[best]) best = k;
    highest += weight * static_cast<double>(row[best]);
    for (size_t k = 0; k < table.lanes.padded(); ++k) row[k] = k == best ? static_cast<T>(weight) : T(0);
  }

  void add_to(const Gaussians& g, const Moments& total) {
    const size_t n = g.n_components;
    for (size_t p = 0; p < g.n_features; ++p) {
      const T* const sums = records + p * record;
      const T* const parameters = table.at(p);
      for (size_t k = 0; k < n; ++k) {
        // From the mean as rounded to T, and in standard units, back to the mean as it is.
        const size_t at = p * n + k;
        const double shift =
            static_cast<double>(parameters[Lanes<T, L>::slot(k, F::n_parameters, 0)]) - g.means[at];
        const double count = static_cast<double>(sums[Lanes<T, L>::slot(k, F::n_sums, 0)]);
        double first = static_cast<double>(sums[Lanes<T, L>::slot(k, F::n_sums, 1)]);
        if constexpr (F::per_coordinate) {
          const double unit = 1 / static_cast<double>(parameters[Lanes<T, L>::slot(k, 3, 1)]);
          first *= unit;
          total.second[at] += static_cast<double>(sums[Lanes<T, L>::slot(k, 3, 2)]) * unit * unit +
                              shift * (2 * first + count * shift);
        } else {
          total.second[k] += shift * (2 * first + count * shift);
        }
        total.count[at] += count;
        total.first[at] += first + count * shift;
      }
    }
    for (size_t k = 0; k < n; ++k) {
      total.size[k] += size[k];
      if constexpr (!F::per_coordinate) total.second[k] += energies[k];
    }
    *total.log_likelihood += highest + totals.total();
  }

  void clear(size_t n_features) {
    std::memset(static_cast<void*>(records), 0, n_features * record * sizeof(T));
    std::memset(static_cast<void*>(size), 0, table.lanes.padded() * sizeof(double));
    std::memset(static_cast<void*>(energies), 0, table.lanes.padded() * sizeof(double));
    highest = 0;
    totals = {};
  }
};

// One block of components: a batch stays in the first-level cache. Several: its responsibilities stay in the
// second, and each coordinate meets enough entries to be worth its registers.
size_t rows_of_batch(size_t sketch_size, size_t n_blocks, size_t padded) {
  const size_t rows = n_blocks == 1 ? 2048 / sketch_size : 65536 / (sketch_size + padded);
  return rows < 1 ? 1 : rows > 512 ? 512 : rows;
}

template <template <class, int> class Family, class T, int L>
void statistics(const StatisticsTask& task, int n_threads) {
  const SketchView& sketch = task.sketch;
  const size_t q = sketch.sketch_size;
  const size_t n_parts = static_cast<size_t>(n_threads), n_shards = shards_of(sketch, task.shard_rows);
  const Table<Family, T, L> table(task.gaussians, q, n_threads);
  const size_t padded = table.lanes.padded();
  const size_t batch_rows = rows_of_batch(q, table.lanes.n_blocks, padded);
  const size_t record = table.lanes.record(Family<T, L>::n_sums);
  Scratch<T> values(n_parts, batch_rows * q), densities(n_parts, batch_rows * padded),
      row_energies(n_parts, padded);
  Scratch<uint32_t> indices(n_parts, batch_rows * q);
  const bool by_coordinate = table.lanes.n_blocks > 1 && !task.hard;
  const size_t n_sorted = by_coordinate ? batch_rows * q : 0;
  Scratch<T> sorted_values(n_parts, n_sorted);
  Scratch<uint32_t> sorted_rows(n_parts, n_sorted), ends(n_parts, task.gaussians.n_features + 1);
  Scratch<T> records(n_parts, task.gaussians.n_features * record);
  Scratch<double> sizes(n_parts, padded), energies(n_parts, padded);

#pragma omp parallel num_threads(n_threads)
  {
    const size_t thread = static_cast<size_t>(omp_get_thread_num());
    Batch<T> batch{values.part(thread), indices.part(thread), q};
    Sums<Family, T, L> sums{table, record, records.part(thread), sizes.part(thread), energies.part(thread)};
    Transposed<T> transposed{task.gaussians.n_features, ends.part(thread), sorted_values.part(thread),
                             sorted_rows.part(thread)};
    T* const density = densities.part(thread);
    T* const energy = row_energies.part(thread);
#pragma omp for ordered schedule(dynamic, 1)
    for (size_t shard = 0; shard < n_shards; ++shard) {
      const size_t begin = shard * task.shard_rows;
      const size_t end = std::min(begin + task.shard_rows, sketch.n_rows);
      for (size_t first = begin; first < end; first += batch_rows) {
        const size_t last = first + batch_rows < end ? first + batch_rows : end;
        batch.read(sketch, first, last);
        table.energies(batch, last - first, density);
        for (size_t i = 0; i < last - first; ++i) {
          T* const row = density + i * padded;
          const double weight = task.sample_weight ? task.sample_weight[first + i] : 1;
          if constexpr (!Family<T, L>::per_coordinate) std::memcpy(energy, row, padded * sizeof(T));
          table.to_log_density(row);
          task.hard ? sums.hard(row, weight) : sums.soft(row, weight);
          for (size_t k = 0; k < padded; ++k) {
            sums.size[k] += static_cast<double>(row[k]);
            if constexpr (!Family<T, L>::per_coordinate)
              sums.energies[k] += static_cast<double>(row[k]) * static_cast<double>(energy[k]);
          }
        }
        if (by_coordinate) {
          transposed.sort(batch, last - first);
          sums.add_coordinates(transposed, density);
        } else {
          sums.add_rows(batch, last - first, density);
        }
      }
#pragma omp ordered
      sums.add_to(task.gaussians, task.moments);
      sums.clear(task.gaussians.n_features);
    }
  }
}

template <template <class, int> class Family, class T, int L>
void log_density(const DensityTask& task, int n_threads) {
  const SketchView& sketch = task.sketch;
  const size_t q = sketch.sketch_size;
  const size_t n_components = task.gaussians.n_components;
  const size_t n_parts = static_cast<size_t>(n_threads);
  const Table<Family, T, L> table(task.gaussians, q, n_threads);
  const size_t padded = table.lanes.padded();
  const size_t batch_rows = rows_of_batch(q, table.lanes.n_blocks, padded);
  const size_t n_batches = (sketch.n_rows + batch_rows - 1) / batch_rows;
  Scratch<T> values(n_parts, batch_rows * q), densities(n_parts, batch_rows * padded);
  Scratch<uint32_t> indices(n_parts, batch_rows * q);

#pragma omp parallel num_threads(n_threads)
  {
    const size_t thread = static_cast<size_t>(omp_get_thread_num());
    Batch<T> batch{values.part(thread), indices.part(thread), q};
    T* const density = densities.part(thread);
#pragma omp for schedule(static)
    for (size_t b = 0; b < n_batches; ++b) {
      const size_t first = b * batch_rows;
      const size_t last = first + batch_rows < sketch.n_rows ? first + batch_rows : sketch.n_rows;
      batch.read(sketch, first, last);
      table.energies(batch, last - first, density);
      for (size_t i = first; i < last; ++i) {
        T* const row = density + (i - first) * padded;
        table.to_log_density(row);
        for (size_t k = 0; k < n_components; ++k)
          task.log_density[i * n_components + k] = static_cast<double>(row[k]);
      }
    }
  }
}

// Calls `run` with a zero of the arithmetic's type and the number of lanes: narrow vectors for few components, the
// machine's own for many.
template <class Run>
void in_lanes(const Gaussians& gaussians, bool double_precision, const Run& run) {
  const auto in_type = [&](auto zero) {
    constexpr int native = native_lanes<decltype(zero)>;
    if (gaussians.n_components <= 4)
      run(zero, std::integral_constant<int, 4>{});
    else
      run(zero, std::integral_constant<int, (native > 4 ? native : 4)>{});
  };
  double_precision ? in_type(double{}) : in_type(float{});
}

template <template <class, int> class Family>
void statistics_in_lanes(const StatisticsTask& task, int n_threads) {
  in_lanes(task.gaussians, task.double_precision, [&](auto zero, auto lanes) {
    statistics<Family, decltype(zero), decltype(lanes)::value>(task, n_threads);
  });
}

template <template <class, int> class Family>
void log_density_in_lanes(const DensityTask& task, int n_threads) {
  in_lanes(task.gaussians, task.double_precision, [&](auto zero, auto lanes) {
    log_density<Family, decltype(zero), decltype(lanes)::value>(task, n_threads);
  });
}

}  // namespace

void diagonal_statistics(const StatisticsTask& task, int n_threads) {
  statistics_in_lanes<Diagonal>(task, n_threads);
}
void spherical_statistics(const StatisticsTask& task, int n_threads) {
  statistics_in_lanes<Spherical>(task, n_threads);
}
void diagonal_log_density(const DensityTask& task, int n_threads) {
  log_density_in_lanes<Diagonal>(task, n_threads);
}
void spherical_log_density(const DensityTask& task, int n_threads) {
  log_density_in_lanes<Spherical>(task, n_threads);
}

}  // namespace sketchmix::SKETCHMIX_LEVEL
