// The kernels at every level that this machine has, under the sanitizers: awkward sizes, every type, several
// threads. The results are compared with loops written out from the formulas.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/dispatch.hpp"

using namespace sketchmix;

namespace {

int n_passed = 0;
int n_failed = 0;

void expect(bool condition, const char* level, const char* what) {
  condition ? ++n_passed : ++n_failed;
  if (!condition) std::fprintf(stderr, "%s: failed: %s\n", level, what);
}

bool close(double a, double b, double tolerance) { return std::fabs(a - b) <= tolerance * (1 + std::fabs(b)); }

std::mt19937_64 generator(7);

double normal() { return std::normal_distribution<double>()(generator); }

// A sketch of rows, and the arrays that it needs, on the heap so that a step outside is caught.
template <class T, class I>
struct Made {
  std::vector<T> values;
  std::vector<I> indices;
  SketchView view;

  Made(size_t n, size_t q, size_t p, Value value_type, Index index_type) : values(n * q), indices(n * q) {
    for (T& x : values) x = static_cast<T>(normal());
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < q; ++j) indices[i * q + j] = static_cast<I>(j + (i % (p - q + 1)));
    view.values = values.data();
    view.value_type = value_type;
    view.value_stride = static_cast<ptrdiff_t>(q);
    view.indices = indices.data();
    view.index_type = index_type;
    view.index_stride = static_cast<ptrdiff_t>(q);
    view.n_rows = n;
    view.sketch_size = q;
    view.last_index = static_cast<uint32_t>(p - 1);
  }
};

struct Mixture {
  std::vector<double> log_weights, means, variances;
  Gaussians view;

  Mixture(size_t p, size_t k, bool diagonal) : log_weights(k), means(p * k), variances(diagonal ? p * k : k) {
    for (double& w : log_weights) w = -std::log(static_cast<double>(k)) + 0.1 * normal();
    for (double& m : means) m = normal();
    for (double& v : variances) v = 0.5 + std::fabs(normal());
    view = {p, k, log_weights.data(), means.data(), variances.data()};
  }
};

template <class T, class I>
std::vector<double> expected_density(const Made<T, I>& sketch, const Mixture& mixture, bool diagonal) {
  const size_t k = mixture.view.n_components, q = sketch.view.sketch_size;
  std::vector<double> out;
  for (size_t i = 0; i < sketch.view.n_rows; ++i)
    for (size_t c = 0; c < k; ++c) {
      double sum = mixture.log_weights[c];
      for (size_t j = 0; j < q; ++j) {
        const size_t p = sketch.indices[i * q + j];
        const double variance = mixture.variances[diagonal ? p * k + c : c];
        const double d = static_cast<double>(sketch.values[i * q + j]) - mixture.means[p * k + c];
        sum -= 0.5 * (std::log(variance) + d * d / variance);
      }
      out.push_back(sum);
    }
  return out;
}

template <class T, class I>
void test_mixture(const Kernels& kernels, size_t n, size_t q, size_t p, size_t k, bool diagonal, Value value_type,
                  Index index_type) {
  const Made<T, I> sketch(n, q, p, value_type, index_type);
  const Mixture mixture(p, k, diagonal);
  const std::vector<double> expected = expected_density(sketch, mixture, diagonal);
  const bool twice = value_type == Value::float64;
  const double tolerance = twice ? 1e-11 : 2e-4;

  std::vector<double> density(n * k);
  const DensityTask density_task{sketch.view, mixture.view, twice, density.data()};
  (diagonal ? kernels.diagonal_log_density : kernels.spherical_log_density)(density_task, 2);
  bool all = true;
  for (size_t i = 0; i < n * k; ++i) all = all && close(density[i], expected[i], tolerance);
  expect(all, kernels.level, "log density");

  std::vector<double> weight(n);
  for (double& w : weight) w = std::fabs(normal());
  for (const bool hard : {false, true}) {
    double log_likelihood = 0, total = 0, expected_total = 0;
    std::vector<double> size(k), count(p * k), first(p * k), second(mixture.variances.size());
    StatisticsTask task;
    task.sketch = sketch.view;
    task.sample_weight = weight.data();
    task.gaussians = mixture.view;
    task.hard = hard;
    task.double_precision = twice;
    task.shard_rows = n / 3 + 1;
    task.moments = {&log_likelihood, size.data(), count.data(), first.data(), second.data()};
    (diagonal ? kernels.diagonal_statistics : kernels.spherical_statistics)(task, 2);
    for (double s : size) total += s;
    for (double w : weight) expected_total += w;
    expect(close(total, expected_total, tolerance), kernels.level, "sizes add up to the weights");
    double counted = 0;
    for (double c : count) counted += c;
    expect(close(counted, expected_total * static_cast<double>(q), tolerance), kernels.level, "counts");
    double expected_log_likelihood = 0;
    for (size_t i = 0; i < n; ++i) {
      const double* row = expected.data() + i * k;
      double top = row[0], sum = 0;
      for (size_t c = 0; c < k; ++c) top = row[c] > top ? row[c] : top;
      for (size_t c = 0; c < k; ++c) sum += std::exp(row[c] - top);
      expected_log_likelihood += weight[i] * (hard ? top : top + std::log(sum));
    }
    expect(close(log_likelihood, expected_log_likelihood, tolerance), kernels.level, "log-likelihood");
  }
}

// log weight + log density, by elimination of the kept block.
double expected_full_density(const Made<double, uint16_t>& sketch, const FullGaussians& g, size_t i, size_t k) {
  const size_t q = sketch.view.sketch_size, p = g.n_features;
  const uint16_t* const kept = sketch.indices.data() + i * q;
  const double* const covariance = g.covariances + (g.n_covariances == 1 ? 0 : k) * p * p;
  std::vector<double> block(q * q), d(q);
  for (size_t a = 0; a < q; ++a) {
    d[a] = sketch.values[i * q + a] - g.means[kept[a] * g.n_components + k];
    for (size_t b = 0; b < q; ++b) block[a * q + b] = covariance[kept[a] * p + kept[b]];
  }
  double sum = g.log_weights[k];
  for (size_t a = 0; a < q; ++a) {
    sum -= 0.5 * (std::log(block[a * q + a]) + d[a] * d[a] / block[a * q + a]);
    for (size_t b = a + 1; b < q; ++b) {
      const double factor = block[b * q + a] / block[a * q + a];
      d[b] -= factor * d[a];
      for (size_t c = a; c < q; ++c) block[b * q + c] -= factor * block[a * q + c];
    }
  }
  return sum;
}

// Covariances I + a a^T. Half the curvature is the derivative of the log-likelihood by a covariance: it must say
// what small steps along S do.
void test_full(const Kernels& kernels, size_t n, size_t q, size_t p, size_t k, size_t n_covariances) {
  const Made<double, uint16_t> sketch(n, q, p, Value::float64, Index::uint16);
  const Mixture mixture(p, k, true);
  std::vector<double> covariances(n_covariances * p * p);
  for (size_t c = 0; c < n_covariances; ++c) {
    std::vector<double> a(p);
    for (double& x : a) x = normal();
    for (size_t i = 0; i < p * p; ++i) covariances[c * p * p + i] = a[i / p] * a[i % p] + (i / p == i % p ? 1 : 0);
  }
  const FullGaussians gaussians{
      p, k, n_covariances, mixture.log_weights.data(), mixture.means.data(), covariances.data()};

  std::vector<double> density(n * k);
  kernels.full_log_density({sketch.view, gaussians, density.data()}, 2);
  bool all = true;
  for (size_t i = 0; i < n * k; ++i)
    all = all && close(density[i], expected_full_density(sketch, gaussians, i / k, i % k), 1e-10);
  expect(all, kernels.level, "log density under full covariances");

  std::vector<double> weight(n);
  for (double& w : weight) w = std::fabs(normal());
  const auto statistics = [&](const FullGaussians& g, std::vector<double>& size, std::vector<double>& gradient,
                              std::vector<double>& curvature) {
    double log_likelihood = 0;
    size.assign(k, 0), gradient.assign(p * k, 0), curvature.assign(covariances.size(), 0);
    kernels.full_statistics(
        {sketch.view, weight.data(), g, 3, {&log_likelihood, size.data(), gradient.data(), curvature.data()}}, 2);
    return log_likelihood;
  };
  std::vector<double> size, gradient, curvature, unused[3];
  const double log_likelihood = statistics(gaussians, size, gradient, curvature);
  double expected = 0, total = 0, expected_total = 0, along = 0;
  for (size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (size_t c = 0; c < k; ++c) sum += std::exp(density[i * k + c]);
    expected += weight[i] * std::log(sum);
    expected_total += weight[i];
  }
  for (double s : size) total += s;
  expect(close(log_likelihood, expected, 1e-10), kernels.level, "log-likelihood under full covariances");
  expect(close(total, expected_total, 1e-10), kernels.level, "sizes under full covariances");

  for (size_t c = 0; c < n_covariances; ++c)
    for (size_t i = 0; i < p; ++i)
      for (size_t j = 0; j <= i; ++j)
        along += (i == j ? 0.5 : 1.0) * curvature[(c * p + i) * p + j] * covariances[(c * p + i) * p + j];
  const double step = 1e-5;
  std::vector<double> wider = covariances, narrower = covariances;
  for (double& s : wider) s *= 1 + step;
  for (double& s : narrower) s *= 1 - step;
  FullGaussians moved = gaussians;
  moved.covariances = wider.data();
  const double above = statistics(moved, unused[0], unused[1], unused[2]);
  moved.covariances = narrower.data();
  const double below = statistics(moved, unused[0], unused[1], unused[2]);
  expect(close(along, (above - below) / (2 * step), 1e-5), kernels.level, "curvature under full covariances");
}

// log N(d; 0, W W^T + s I) without its power of 2 pi, by a Cholesky factorisation of the dense matrix.
double low_rank_density(const std::vector<double>& d, const std::vector<const double*>& w, size_t rank,
                        double noise) {
  const size_t q = d.size();
  std::vector<double> a(q * q), y(q);
  double sum = 0;
  for (size_t i = 0; i < q; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double entry = i == j ? noise : 0;
      for (size_t c = 0; c < rank; ++c) entry += w[i][c] * w[j][c];
      for (size_t c = 0; c < j; ++c) entry -= a[i * q + c] * a[j * q + c];
      a[i * q + j] = i == j ? std::sqrt(entry) : entry / a[j * q + j];
    }
    y[i] = d[i];
    for (size_t c = 0; c < i; ++c) y[i] -= a[i * q + c] * y[c];
    y[i] /= a[i * q + i];
    sum += 2 * std::log(a[i * q + i]) + y[i] * y[i];
  }
  return -0.5 * sum;
}

template <class T, class I>
void test_low_rank(const Kernels& kernels, size_t n, size_t q, size_t p, size_t k, size_t rank, Value value_type,
                   Index index_type) {
  const Made<T, I> sketch(n, q, p, value_type, index_type);
  const Mixture mixture(p, k, false);
  const bool twice = value_type == Value::float64;
  const double tolerance = twice ? 1e-9 : 1e-3;
  std::vector<double> factors(k * p * rank);
  for (double& w : factors) w = 0.5 * normal();
  const LowRankGaussians gaussians{
      p, k, rank, mixture.log_weights.data(), mixture.means.data(), factors.data(), mixture.variances.data()};

  std::vector<double> density(n * k), latent(n * k * rank);
  const LowRankPosteriorTask posterior{sketch.view, gaussians, twice, density.data(), latent.data()};
  kernels.low_rank_posterior(posterior, 2);
  bool all = true;
  for (size_t i = 0; i < n; ++i)
    for (size_t c = 0; c < k; ++c) {
      std::vector<double> d(q);
      std::vector<const double*> w(q);
      for (size_t j = 0; j < q; ++j) {
        const size_t at = sketch.indices[i * q + j];
        d[j] = static_cast<double>(sketch.values[i * q + j]) - mixture.means[at * k + c];
        w[j] = factors.data() + (c * p + at) * rank;
      }
      const double expected = mixture.log_weights[c] + low_rank_density(d, w, rank, mixture.variances[c]);
      all = all && close(density[i * k + c], expected, tolerance);
    }
  expect(all, kernels.level, "low-rank log density");

  double log_likelihood = 0, total = 0, counted = 0;
  std::vector<double> size(k), second(k * p * gaussians.triangle()), cross(k * p * gaussians.extended()),
      energy(k);
  LowRankStatisticsTask task;
  task.sketch = sketch.view;
  task.gaussians = gaussians;
  task.double_precision = twice;
  task.shard_rows = n / 3 + 1;
  task.moments = {&log_likelihood, size.data(), second.data(), cross.data(), energy.data()};
  kernels.low_rank_statistics(task, 2);
  for (double s : size) total += s;
  for (size_t i = 0; i < k * p; ++i) counted += second[(i + 1) * gaussians.triangle() - 1];
  expect(close(total, static_cast<double>(n), tolerance), kernels.level, "low-rank sizes");
  expect(close(counted, static_cast<double>(n * q), tolerance), kernels.level, "low-rank counts");
}

// The rotation by H(lead) (x) leaf, with the leaf the identity: plain Hadamard butterflies.
template <class T>
void test_sketch(const Kernels& kernels, size_t lead, size_t run, size_t padding, size_t q, size_t n_shared,
                 Value value_type) {
  const size_t p = lead * run, n = 5, stride = (run + 15) / 16 * 16, n_features = p - padding;
  std::vector<T> rows(n * n_features), signs(lead * stride), coefficients(run * stride);
  for (T& x : rows) x = static_cast<T>(normal());
  for (size_t i = 0; i < n_features; ++i) signs[i / run * stride + i % run] = normal() > 0 ? T(1) : T(-1);
  for (size_t i = 0; i < run; ++i) coefficients[i * stride + i] = 1;
  std::vector<uint32_t> segment(p), coefficient(p), shared, free;
  for (size_t i = 0; i < p; ++i) {
    segment[i] = static_cast<uint32_t>(i / run * stride);
    coefficient[i] = static_cast<uint32_t>(i % run * stride);
    (i < n_shared ? shared : free).push_back(static_cast<uint32_t>(i));
  }
  std::vector<double> values(n * q);  // room for any type
  std::vector<uint32_t> indices(n * q);
  SketchTask<T> task;
  task.rows = rows.data();
  task.row_stride = static_cast<ptrdiff_t>(n_features);
  task.n_rows = n;
  task.rotation = {n_features,
                   p,
                   lead,
                   run,
                   stride,
                   1,
                   signs.data(),
                   nullptr,
                   nullptr,
                   segment.data(),
                   coefficient.data(),
                   coefficients.data()};
  task.mask = {q, 11, 3, shared.data(), n_shared, free.data()};
  task.values = values.data();
  task.value_type = value_type;
  task.indices = indices.data();
  task.index_type = Index::uint32;
  double largest = -1;
  task.largest = &largest;
  if constexpr (sizeof(T) == 4)
    kernels.sketch_float(task, 2);
  else
    kernels.sketch_double(task, 2);

  bool sorted = true, right = true;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < q; ++j) {
      const size_t at = indices[i * q + j];
      sorted = sorted && at < p && (j == 0 || at > indices[i * q + j - 1]);
      double sum = 0;
      for (size_t h = 0; h < lead; ++h) {
        const size_t from = h * run + at % run;
        const double sign = __builtin_popcountll(h & (at / run)) % 2 ? -1 : 1;
        if (from >= n_features) continue;
        const T signed_entry = signs[from / run * stride + from % run] * rows[i * n_features + from];
        sum += sign * static_cast<double>(signed_entry);
      }
      if (value_type == Value::float64)
        right = right && close(values[i * q + j], sum, sizeof(T) == 4 ? 1e-5 : 1e-12);
      else if (value_type == Value::float32)
        right = right && close(reinterpret_cast<const float*>(values.data())[i * q + j], sum, 1e-5);
    }
  expect(sorted, kernels.level, "indices increase and stay inside");
  expect(right, kernels.level, "kept entries");
  expect(largest > 0 && std::isfinite(largest), kernels.level, "the largest magnitude");
}

void test_level(const Kernels& kernels) {
  for (const size_t rank : {1, 2, 3, 8, 13, 16, 17})
    for (const size_t k : {1, 3}) {
      test_low_rank<float, uint16_t>(kernels, 37, 7, 19, k, rank, Value::float32, Index::uint16);
      test_low_rank<double, uint32_t>(kernels, 21, 1, 5, k, rank, Value::float64, Index::uint32);
      test_low_rank<double, uint16_t>(kernels, 3, 13, 13, k, rank, Value::float64, Index::uint16);
    }
  for (const size_t k : {1, 3, 4, 5, 8, 9, 16, 17, 33, 70})
    for (const bool diagonal : {false, true}) {
      test_mixture<float, uint16_t>(kernels, 203, 7, 19, k, diagonal, Value::float32, Index::uint16);
      test_mixture<double, uint32_t>(kernels, 57, 1, 5, k, diagonal, Value::float64, Index::uint32);
      test_mixture<double, uint16_t>(kernels, 1, 13, 13, k, diagonal, Value::float64, Index::uint16);
    }
  for (const size_t k : {1, 2, 5})
    for (const size_t n_covariances : {size_t{1}, k})
      for (const size_t q : {1, 2, 5, 8, 13, 19})
        for (const size_t n : {1, 7, 8, 65, 530}) test_full(kernels, n, q, 19, k, n_covariances);
  for (const Value value : {Value::float16, Value::float32, Value::float64})
    for (const size_t n_shared : {0, 1})
      for (const size_t q : {1, 2, 15, 17, 30, 31}) {
        test_sketch<float>(kernels, 32, 1, 0, q, n_shared, value);
        test_sketch<double>(kernels, 16, 3, 5, q, n_shared, value);
        test_sketch<float>(kernels, 2, 49, 0, q, n_shared, value);
        test_sketch<double>(kernels, 128, 16, 0, q, n_shared, value);
        test_sketch<float>(kernels, 1, 33, 1, q, n_shared, value);
      }
}

}  // namespace

int main() {
  for (const char* level : {"baseline", "avx2", "avx512"}) {
    setenv("SKETCHMIX_CPU", level, 1);
    const Kernels& kernels = best_kernels();
    std::printf("asked for %s, running %s\n", level, kernels.level);
    test_level(kernels);
  }
  std::printf("core_tests: %d passed, %d failed\n", n_passed, n_failed);
  return n_failed == 0 ? 0 : 1;
}
