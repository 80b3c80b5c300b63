// One pass of EM over a sketch for covariances W W^T + s I, of rank r: mixtures of probabilistic PCAs.
//
// For a row with kept coordinates R, d = (x - mu)_R, and a component:
//   M = s I + W_R^T W_R,  b = W_R^T d,  E[z] = M^-1 b,  Cov z = s M^-1,
//   log N(x_R; mu_R, S_R) = -(|d|^2 - b^T M^-1 b) / 2s - log|M| / 2 - (Q - r) log(s) / 2   (without the 2 pi).
//
// W_R^T W_R is summed row by row with the factors of a coordinate as lanes. The small matrices are then factored,
// solved and inverted with rows as lanes. Sums are as in mixture.cpp: in the kernel's precision within a shard, in
// float64 beyond, shard after shard.
#include <limits>
#include <type_traits>

#include "batch.hpp"
#include "kernels.hpp"
#include "scratch.hpp"
#include "simd.hpp"

namespace sketchmix::SKETCHMIX_LEVEL {
namespace {

constexpr size_t triangle(size_t n) { return n * (n + 1) / 2; }
constexpr size_t in_triangle(size_t row, size_t column) { return triangle(row) + column; }

// Lower triangles of n x n matrices, packed row by row, an entry of L matrices to a vector.
template <class T, int L>
struct Triangles {
  using V = Vec<T, L>;

  // A = F F^T, in place, with the reciprocals of the diagonal in its place. A pivot that is not above `least` is
  // rounding, and taken for `instead`: for infinity, solutions have a zero there.
  static void factor(V* a, size_t n, V least, V instead, V* log_determinant) {
    V total = {};
    for (size_t j = 0; j < n; ++j) {
      V* const row = a + triangle(j);
      const V root = square_root<T, L>(row[j] > least ? row[j] : instead);
      const V reciprocal = T(1) / root;
      if (log_determinant) total += log_positive<T, L>(root);
      row[j] = reciprocal;
      for (size_t i = j + 1; i < n; ++i) a[in_triangle(i, j)] *= reciprocal;
      // What the columns to the right lose to this one: no sum waits for another.
      for (size_t i = j + 1; i < n; ++i) {
        V* const lower = a + triangle(i);
        const V factor = lower[j];
        for (size_t c = j + 1; c <= i; ++c) lower[c] -= factor * a[in_triangle(c, j)];
      }
    }
    if (log_determinant) *log_determinant = total + total;
  }

  // y = F^-1 b.
  static void solve_lower(const V* f, size_t n, const V* b, V* y) {
    for (size_t i = 0; i < n; ++i) {
      const V* const row = f + triangle(i);
      V sum = b[i];
      for (size_t c = 0; c < i; ++c) sum -= row[c] * y[c];
      y[i] = sum * row[i];
    }
  }

  // x = F^-T y, in place.
  static void solve_upper(const V* f, size_t n, V* y) {
    for (size_t i = n; i-- > 0;) {
      V sum = y[i];
      for (size_t c = i + 1; c < n; ++c) sum -= f[in_triangle(c, i)] * y[c];
      y[i] = sum * f[in_triangle(i, i)];
    }
  }

  // F^-1, in place.
  static void invert(V* f, size_t n) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = j + 1; i < n; ++i) {
        V* const row = f + triangle(i);
        V sum = row[j] * f[in_triangle(j, j)];
        for (size_t c = j + 1; c < i; ++c) sum += row[c] * f[in_triangle(c, j)];
        row[j] = -sum * row[i];
      }
    }
  }
};

// The parameters in the layout of the kernels: for each component and coordinate `width` factors, zero beyond the
// rank.
template <class T, int L>
struct LowRankTable {
  const LowRankGaussians& gaussians;
  size_t width;
  Scratch<T> factors;   // K x P x width
  Scratch<T> means;     // K x P
  Scratch<T> constant;  // K: log weight - (Q - r) log(s) / 2

  LowRankTable(const LowRankGaussians& g, size_t sketch_size)
      : gaussians(g),
        width(round_up(g.rank, L > 4 ? L : 4)),
        factors(1, g.n_components * g.n_features * width),
        means(1, g.n_components * g.n_features),
        constant(1, g.n_components) {
    const double free = static_cast<double>(sketch_size) - static_cast<double>(g.rank);
    for (size_t k = 0; k < g.n_components; ++k) {
      constant.part(0)[k] = static_cast<T>(g.log_weights[k] - 0.5 * free * std::log(g.noise[k]));
      for (size_t p = 0; p < g.n_features; ++p) {
        means.part(0)[k * g.n_features + p] = static_cast<T>(g.means[p * g.n_components + k]);
        const double* const from = g.factors + (k * g.n_features + p) * g.rank;
        T* const to = factors.part(0) + (k * g.n_features + p) * width;
        for (size_t j = 0; j < g.rank; ++j) to[j] = static_cast<T>(from[j]);
      }
    }
  }

  const T* factors_of(size_t k) const { return factors.part(0) + k * gaussians.n_features * width; }
  const T* means_of(size_t k) const { return means.part(0) + k * gaussians.n_features; }
};

// Rows [first, first + n_rows) of W_R^T W_R, one vector of columns, as many rows at a time as stay in registers;
// and, with the first of them, that vector of W_R^T d.
template <int n_rows, class T, int L>
SKETCHMIX_INLINE void gram_rows(const T* factors, size_t width, const uint32_t* kept, const T* d, size_t q,
                                size_t first, size_t column, T* gram, T* projections) {
  using V = Vec<T, L>;
  V sums[n_rows] = {}, even = {}, odd = {};
  const T *const rows = factors + first, *const columns = factors + column;
  for (size_t i = 0; i < q; ++i) {
    const T* const w = rows + kept[i] * width;
    const V v = load<V>(columns + kept[i] * width);
#pragma GCC unroll 12
    for (int j = 0; j < n_rows; ++j) sums[j] += w[j] * v;
    const V product = d[i] * v;
    (i % 2 ? odd : even) += product;
  }
#pragma GCC unroll 12
  for (int j = 0; j < n_rows; ++j) store(gram + (first + static_cast<size_t>(j)) * width + column, sums[j]);
  if (first == column / 4 * 4) store(projections + column, even + odd);
}

// The rows from `first` on, of which there are at most `most`.
template <int most, class T, int L>
void gram_rest(const T* factors, size_t width, size_t rank, const uint32_t* kept, const T* d, size_t q,
               size_t first, size_t column, T* gram, T* projections) {
  if constexpr (most > 2)
    if (first + (most - 2) >= rank)
      return gram_rest<most - 2, T, L>(factors, width, rank, kept, d, q, first, column, gram, projections);
  gram_rows<most, T, L>(factors, width, kept, d, q, first, column, gram, projections);
}

template <class T, int L>
void gram(const T* factors, size_t width, size_t rank, const uint32_t* kept, const T* d, size_t q, T* out,
          T* projections) {
  for (size_t column = 0; column < rank; column += L) {
    size_t row = column / 4 * 4;  // above are columns of the upper triangle only
    for (; row + 12 < rank; row += 12)
      gram_rows<12, T, L>(factors, width, kept, d, q, row, column, out, projections);
    gram_rest<12, T, L>(factors, width, rank, kept, d, q, row, column, out, projections);
  }
}

// The sum of squares, in an order that the number of lanes alone says.
template <class T, int L>
T sum_of_squares(const T* d, size_t n) {
  Vec<T, L> sum = {};
  T rest = 0;
  size_t i = 0;
  for (; i + L <= n; i += L) sum += load<Vec<T, L>>(d + i) * load<Vec<T, L>>(d + i);
  for (; i < n; ++i) rest += d[i] * d[i];
  return sum_lanes<T, L>(sum) + rest;
}

// A thread's working memory for L rows at a time.
template <class T, int L>
struct LowRankRows {
  using V = Vec<T, L>;
  static constexpr size_t lanes = L;

  const LowRankTable<T, L>& table;
  size_t rank, n_components;
  Batch<T> batch;
  T* gram_of_row;  // width x width
  T* deviations;   // K x L x Q
  T* projections;  // width: b of a row
  V* systems;      // K x (triangle + rank): the factor of M, and F^-1 b
  T* energies;     // K x L: |d|^2
  T* density;      // K x L
  size_t n_rows = 0;

  V* factor_of(size_t k) const { return systems + k * (triangle(rank) + rank); }
  V* projection_of(size_t k) const { return factor_of(k) + triangle(rank); }
  T* deviations_of(size_t k, size_t lane) const { return deviations + (k * lanes + lane) * batch.q; }

  // Reads L rows, or what is left with the last row repeated, and computes their densities.
  void expect(const SketchView& sketch, size_t first, size_t last) {
    n_rows = last - first;
    batch.read(sketch, first, last);
    for (size_t k = 0; k < n_components; ++k) {
      V* const m = factor_of(k);
      for (size_t lane = 0; lane < lanes; ++lane) sum_row(k, lane, lane < n_rows ? lane : n_rows - 1, m);
      finish(k, m);
    }
  }

  // |d|^2, b and the lower triangle of W_R^T W_R, of one row, into its lane.
  void sum_row(size_t k, size_t lane, size_t row, V* m) {
    const T *const factors = table.factors_of(k), *const means = table.means_of(k), *const x = batch.row(row);
    const uint32_t* const kept = batch.kept(row);
    T* const d = deviations_of(k, lane);
    for (size_t i = 0; i < batch.q; ++i) d[i] = x[i] - means[kept[i]];
    energies[k * lanes + lane] = sum_of_squares<T, L>(d, batch.q);
    gram<T, L>(factors, table.width, rank, kept, d, batch.q, gram_of_row, projections);
    for (size_t i = 0; i < rank; ++i)
      for (size_t j = 0; j <= i; ++j) m[in_triangle(i, j)][lane] = gram_of_row[i * table.width + j];
    for (size_t i = 0; i < rank; ++i) m[triangle(rank) + i][lane] = projections[i];
  }

  void finish(size_t k, V* m) {
    const T noise = static_cast<T>(table.gaussians.noise[k]);
    for (size_t i = 0; i < rank; ++i) m[in_triangle(i, i)] += noise;
    V log_determinant;
    // Every pivot of M is s or more, but for rounding.
    const V least = splat<T, L>(noise);
    Triangles<T, L>::factor(m, rank, least / 2, least, &log_determinant);
    V* const y = projection_of(k);
    Triangles<T, L>::solve_lower(m, rank, y, y);
    V distance = load<V>(energies + k * lanes);
    for (size_t i = 0; i < rank; ++i) distance -= y[i] * y[i];
    distance = maximum(distance, V{});
    store(density + k * lanes, table.constant.part(0)[k] - T(0.5) * (distance / noise + log_determinant));
  }
};

// A shard's sums.
template <class T, int L>
struct LowRankSums {
  using V = Vec<T, L>;
  static constexpr size_t lanes = L;

  const LowRankTable<T, L>& table;
  size_t rank;
  size_t record;   // triangle of z~ z~^T, then z~, then zeros up to whole vectors
  T* records;      // K x P records
  T* moments;      // a record: of one row, to be added
  V* posterior;    // triangle + extended
  double* size;    // K
  double* energy;  // K
  double highest = 0;
  LogSum totals{};

  static size_t record_size(const LowRankGaussians& g) { return round_up(g.triangle() + g.extended(), L); }

  // Densities become responsibilities times the rows' weights; `weight` is zero where there is no row.
  void share(T* density, const T* weight, const double* exact_weight) {
    const size_t n = table.gaussians.n_components;
    V top = load<V>(density);
    for (size_t k = 1; k < n; ++k) top = maximum(top, load<V>(density + k * lanes));
    V sum = {};
    for (size_t k = 0; k < n; ++k) {
      const V e = exp_nonpositive<T, L>(load<V>(density + k * lanes) - top);
      store(density + k * lanes, e);
      sum += e;
    }
    const V factor = load<V>(weight) / sum;
    for (size_t k = 0; k < n; ++k) store(density + k * lanes, load<V>(density + k * lanes) * factor);
    for (size_t lane = 0; lane < lanes; ++lane) {
      if (exact_weight[lane] == 0) continue;
      highest += exact_weight[lane] * static_cast<double>(top[lane]);
      totals.add(static_cast<double>(sum[lane]), exact_weight[lane]);
    }
  }

  void add(LowRankRows<T, L>& rows, const T* weight) {
    for (size_t k = 0; k < table.gaussians.n_components; ++k) {
      const T* const r = rows.density + k * lanes;
      for (size_t lane = 0; lane < lanes; ++lane) {
        size[k] += static_cast<double>(r[lane]);
        energy[k] += static_cast<double>(r[lane]) * static_cast<double>(rows.energies[k * lanes + lane]);
      }
      // A share that is smaller is lost beside those of the rows that belong here.
      const V negligible = load<V>(weight) * (std::numeric_limits<T>::epsilon() / 8);
      if (max_lanes<T, L>(load<V>(r) - negligible) <= 0) continue;
      expect(k, rows);
      for (size_t lane = 0; lane < rows.n_rows; ++lane)
        if (r[lane] > negligible[lane]) add_row(k, lane, r[lane], rows);
    }
  }

  // E[z~ z~^T] = s M^-1 + E[z] E[z]^T, bordered by E[z] and 1, and E[z~], for all lanes.
  void expect(size_t k, LowRankRows<T, L>& rows) {
    V* const f = rows.factor_of(k);
    V* const z = rows.projection_of(k);
    V* const out = posterior;
    Triangles<T, L>::solve_upper(f, rank, z);
    Triangles<T, L>::invert(f, rank);
    const T noise = static_cast<T>(table.gaussians.noise[k]);
    for (size_t i = 0; i < rank; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        V sum = {};
        for (size_t c = i; c < rank; ++c) sum += f[in_triangle(c, i)] * f[in_triangle(c, j)];
        out[in_triangle(i, j)] = noise * sum + z[i] * z[j];
      }
      out[in_triangle(rank, i)] = out[triangle(rank + 1) + i] = z[i];
    }
    out[in_triangle(rank, rank)] = out[triangle(rank + 1) + rank] = splat<T, L>(T(1));
  }

  // To the record of each kept coordinate: r E[z~ z~^T], and r d E[z~].
  void add_row(size_t k, size_t lane, T r, const LowRankRows<T, L>& rows) {
    const size_t n_moments = triangle(rank + 1), n_plain = n_moments / lanes * lanes;
    for (size_t i = 0; i < n_moments + rank + 1; ++i) moments[i] = r * posterior[i][lane];
    // The vector in which the one ends and the other begins takes both: the triangle as it is, z~ times d.
    T bordering[2 * lanes] = {};
    for (size_t i = n_plain; i < n_moments; ++i) bordering[i - n_plain] = moments[i];
    const V plain = load<V>(bordering);
    for (size_t i = n_plain; i < n_moments; ++i) moments[i] = 0;

    T* const shard = records + k * table.gaussians.n_features * record;
    const uint32_t* const kept = rows.batch.kept(lane);
    const T* const d = rows.deviations_of(k, lane);
    for (size_t i = 0; i < rows.batch.q; ++i) {
      T* const at = shard + kept[i] * record;
      const T* const soon = shard + kept[i + 4 < rows.batch.q ? i + 4 : i] * record;
      for (size_t v = 0; v < record; v += cache_line / sizeof(T)) __builtin_prefetch(soon + v, 1);
      for (size_t v = 0; v < n_plain; v += lanes) store(at + v, load<V>(at + v) + load<V>(moments + v));
      store(at + n_plain, load<V>(at + n_plain) + (plain + d[i] * load<V>(moments + n_plain)));
      for (size_t v = n_plain + lanes; v < record; v += lanes)
        store(at + v, load<V>(at + v) + d[i] * load<V>(moments + v));
    }
  }

  // The deviations were from the mean as rounded to T; the totals are around the mean as it is.
  void add_to(const LowRankGaussians& g, const LowRankMoments& total) {
    for (size_t k = 0; k < g.n_components; ++k) {
      for (size_t p = 0; p < g.n_features; ++p) {
        const size_t at = k * g.n_features + p;
        const T* const sums = records + at * record;
        double* const second = total.second + at * g.triangle();
        double* const cross = total.cross + at * g.extended();
        const double shift = static_cast<double>(table.means_of(k)[p]) - g.means[p * g.n_components + k];
        const T *const of_z = sums + triangle(rank), *const products = sums + g.triangle();
        for (size_t i = 0; i < g.triangle(); ++i) second[i] += static_cast<double>(sums[i]);
        for (size_t i = 0; i <= rank; ++i)
          cross[i] += static_cast<double>(products[i]) + shift * static_cast<double>(of_z[i]);
        energy[k] += shift * (2 * static_cast<double>(products[rank]) + shift * static_cast<double>(of_z[rank]));
      }
      total.size[k] += size[k];
      total.energy[k] += energy[k];
    }
    *total.log_likelihood += highest + totals.total();
  }

  void clear() {
    const LowRankGaussians& g = table.gaussians;
    std::memset(static_cast<void*>(records), 0, g.n_components * g.n_features * record * sizeof(T));
    std::memset(static_cast<void*>(size), 0, g.n_components * sizeof(double));
    std::memset(static_cast<void*>(energy), 0, g.n_components * sizeof(double));
    highest = 0;
    totals = {};
  }
};

// What every thread needs to read rows.
template <class T, int L>
struct LowRankScratch {
  Scratch<T> values, grams, deviations, projections, energies, densities;
  Scratch<Vec<T, L>> systems;
  Scratch<uint32_t> indices;

  LowRankScratch(size_t n_parts, const LowRankTable<T, L>& table, size_t q)
      : values(n_parts, L * q),
        grams(n_parts, table.width * table.width),
        deviations(n_parts, table.gaussians.n_components * L * q),
        projections(n_parts, table.width),
        energies(n_parts, table.gaussians.n_components * L),
        densities(n_parts, table.gaussians.n_components * L),
        systems(n_parts, table.gaussians.n_components * (triangle(table.gaussians.rank) + table.gaussians.rank)),
        indices(n_parts, L * q) {}

  LowRankRows<T, L> rows(size_t part, const LowRankTable<T, L>& table, size_t q) const {
    return {table,
            table.gaussians.rank,
            table.gaussians.n_components,
            Batch<T>{values.part(part), indices.part(part), q},
            grams.part(part),
            deviations.part(part),
            projections.part(part),
            systems.part(part),
            energies.part(part),
            densities.part(part)};
  }
};

template <class T>
void statistics(const LowRankStatisticsTask& task, int n_threads) {
  constexpr int L = native_lanes<T>;
  const SketchView& sketch = task.sketch;
  const LowRankGaussians& g = task.gaussians;
  const size_t n_parts = static_cast<size_t>(n_threads), q = sketch.sketch_size;
  const size_t n_shards = shards_of(sketch, task.shard_rows);
  const LowRankTable<T, L> table(g, q);
  const LowRankScratch<T, L> scratch(n_parts, table, q);
  const size_t record = LowRankSums<T, L>::record_size(g);
  Scratch<T> records(n_parts, g.n_components * g.n_features * record), moments(n_parts, record);
  Scratch<Vec<T, L>> posteriors(n_parts, g.triangle() + g.extended());
  Scratch<double> sizes(n_parts, g.n_components), energies(n_parts, g.n_components);

#pragma omp parallel num_threads(n_threads)
  {
    const size_t thread = static_cast<size_t>(omp_get_thread_num());
    LowRankRows<T, L> rows = scratch.rows(thread, table, q);
    LowRankSums<T, L> sums{table,
                           g.rank,
                           record,
                           records.part(thread),
                           moments.part(thread),
                           posteriors.part(thread),
                           sizes.part(thread),
                           energies.part(thread)};
#pragma omp for ordered schedule(dynamic, 1)
    for (size_t shard = 0; shard < n_shards; ++shard) {
      const size_t begin = shard * task.shard_rows;
      const size_t end = std::min(begin + task.shard_rows, sketch.n_rows);
      for (size_t first = begin; first < end; first += L) {
        const size_t last = first + L < end ? first + L : end;
        double exact[L] = {};
        T weight[L] = {};
        for (size_t i = first; i < last; ++i)
          weight[i - first] = static_cast<T>(exact[i - first] = task.sample_weight ? task.sample_weight[i] : 1);
        rows.expect(sketch, first, last);
        sums.share(rows.density, weight, exact);
        sums.add(rows, weight);
      }
#pragma omp ordered
      sums.add_to(g, task.moments);
      sums.clear();
    }
  }
}

template <class T>
void posterior(const LowRankPosteriorTask& task, int n_threads) {
  constexpr int L = native_lanes<T>;
  const SketchView& sketch = task.sketch;
  const LowRankGaussians& g = task.gaussians;
  const size_t q = sketch.sketch_size, n_batches = (sketch.n_rows + L - 1) / L;
  const LowRankTable<T, L> table(g, q);
  const LowRankScratch<T, L> scratch(static_cast<size_t>(n_threads), table, q);

#pragma omp parallel num_threads(n_threads)
  {
    LowRankRows<T, L> rows = scratch.rows(static_cast<size_t>(omp_get_thread_num()), table, q);
#pragma omp for schedule(static)
    for (size_t batch = 0; batch < n_batches; ++batch) {
      const size_t first = batch * L, last = first + L < sketch.n_rows ? first + L : sketch.n_rows;
      rows.expect(sketch, first, last);
      for (size_t k = 0; k < g.n_components; ++k) {
        if (task.latent) Triangles<T, L>::solve_upper(rows.factor_of(k), g.rank, rows.projection_of(k));
        for (size_t i = first; i < last; ++i) {
          const size_t lane = i - first, at = i * g.n_components + k;
          task.log_density[at] = static_cast<double>(rows.density[k * L + lane]);
          for (size_t j = 0; task.latent && j < g.rank; ++j)
            task.latent[at * g.rank + j] = static_cast<double>(rows.projection_of(k)[j][lane]);
        }
      }
    }
  }
}

}  // namespace

void low_rank_statistics(const LowRankStatisticsTask& task, int n_threads) {
  task.double_precision ? statistics<double>(task, n_threads) : statistics<float>(task, n_threads);
}

void low_rank_posterior(const LowRankPosteriorTask& task, int n_threads) {
  task.double_precision ? posterior<double>(task, n_threads) : posterior<float>(task, n_threads);
}

void solve_each(const SolveTask& task, int n_threads) {
  constexpr int L = native_lanes<double>;
  using V = Vec<double, L>;
  const size_t n = task.n_unknowns, n_batches = (task.n_systems + L - 1) / L;
  Scratch<V> systems(static_cast<size_t>(n_threads), triangle(n) + n);

#pragma omp parallel num_threads(n_threads)
  {
    V* const a = systems.part(static_cast<size_t>(omp_get_thread_num()));
    V* const b = a + triangle(n);
#pragma omp for schedule(static)
    for (size_t batch = 0; batch < n_batches; ++batch) {
      for (size_t lane = 0; lane < L; ++lane) {
        const size_t system = batch * L + lane < task.n_systems ? batch * L + lane : task.n_systems - 1;
        for (size_t i = 0; i < triangle(n); ++i) a[i][lane] = task.matrices[system * triangle(n) + i];
        for (size_t i = 0; i < n; ++i) b[i][lane] = task.right_sides[system * n + i];
      }
      V largest = a[0];
      for (size_t i = 1; i < n; ++i) largest = maximum(largest, a[in_triangle(i, i)]);
      const V infinite = splat<double, L>(std::numeric_limits<double>::infinity());
      Triangles<double, L>::factor(a, n, largest * (8 * std::numeric_limits<double>::epsilon()), infinite,
                                   nullptr);
      Triangles<double, L>::solve_lower(a, n, b, b);
      Triangles<double, L>::solve_upper(a, n, b);
      for (size_t lane = 0; lane < L && batch * L + lane < task.n_systems; ++lane)
        for (size_t i = 0; i < n; ++i) task.solutions[(batch * L + lane) * n + i] = b[i][lane];
    }
  }
}

}  // namespace sketchmix::SKETCHMIX_LEVEL
