// The only file that knows nanobind: arrays in, spans out, and the GIL released around every kernel.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <string>
#include <vector>

#include "core/dispatch.hpp"
#include "core/kernels.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace sketchmix {
namespace {

const Kernels& kernels = best_kernels();

template <class T>
using Array = nb::ndarray<nb::ro, const T, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
// Rows of entries that follow each other; the rows themselves may lie any distance apart.
using Rows = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using OutputRows = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr nb::dlpack::dtype float16_dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

int max_threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// No more threads than there is work for: starting one costs as much as some thousand entries.
int threads_for(size_t n_tasks) {
  const size_t most = static_cast<size_t>(max_threads());
  return static_cast<int>(n_tasks < 1 ? 1 : n_tasks < most ? n_tasks : most);
}

template <class A>
Value value_type(const A& array) {
  if (array.dtype() == nb::dtype<float>()) return Value::float32;
  if (array.dtype() == nb::dtype<double>()) return Value::float64;
  require(array.dtype() == float16_dtype, "values must be float16, float32 or float64");
  return Value::float16;
}

template <class A>
Index index_type(const A& array) {
  if (array.dtype() == nb::dtype<uint16_t>()) return Index::uint16;
  require(array.dtype() == nb::dtype<uint32_t>(), "indices must be uint16 or uint32");
  return Index::uint32;
}

ptrdiff_t row_stride(const Rows& array) {
  require(array.size() == 0 || array.shape(1) <= 1 || array.stride(1) == 1,
          "the entries of a row must be contiguous");
  return array.stride(0);
}

// A rotation's tables, owned, in both precisions.
class RotationTables {
 public:
  RotationTables(size_t n_features, size_t n_rotated, size_t lead, size_t run, size_t stride, size_t terms,
                 Array<double> signs, std::optional<Array<uint32_t>> order, std::optional<Array<double>> mix,
                 Array<uint32_t> segment, Array<uint32_t> coefficient, Array<double> coefficients)
      : n_features_(n_features), n_rotated_(n_rotated), lead_(lead), run_(run), stride_(stride), terms_(terms) {
    copy(signs, signs_.single, signs_.twice);
    if (mix) copy(*mix, mix_.single, mix_.twice);
    copy(coefficients, coefficients_.single, coefficients_.twice);
    if (order) order_.assign(order->data(), order->data() + order->size());
    segment_.assign(segment.data(), segment.data() + segment.size());
    coefficient_.assign(coefficient.data(), coefficient.data() + coefficient.size());
    check();
  }

  template <class T>
  Rotation<T> view() const {
    Rotation<T> r;
    r.n_features = n_features_;
    r.n_rotated = n_rotated_;
    r.lead = lead_;
    r.run = run_;
    r.stride = stride_;
    r.terms = terms_;
    r.signs = signs_.get<T>();
    r.order = order_.empty() ? nullptr : order_.data();
    r.mix = mix_.get<T>();
    r.segment = segment_.data();
    r.coefficient = coefficient_.data();
    r.coefficients = coefficients_.get<T>();
    return r;
  }

  size_t n_features() const { return n_features_; }
  size_t n_rotated() const { return n_rotated_; }

 private:
  struct Both {
    std::vector<float> single;
    std::vector<double> twice;
    template <class T>
    const T* get() const {
      if constexpr (sizeof(T) == 4)
        return single.empty() ? nullptr : single.data();
      else
        return twice.empty() ? nullptr : twice.data();
    }
  };

  static void copy(const Array<double>& from, std::vector<float>& single, std::vector<double>& twice) {
    twice.assign(from.data(), from.data() + from.size());
    single.assign(twice.begin(), twice.end());
  }

  // Everything that a kernel will follow without looking.
  void check() const {
    require(n_features_ > 0 && n_rotated_ > 0, "rows must have entries");
    require(lead_ > 0 || n_rotated_ <= n_features_, "entries that are copied must be those of the row");
    if (lead_ == 0) return;
    require(order_.empty() || !mix_.twice.empty(), "an order needs a matrix");
    require(run_ <= stride_ && stride_ % 16 == 0, "a run must fit its stride, in whole vectors");
    require(lead_ * run_ >= n_features_ && signs_.twice.size() == lead_ * stride_, "the layout must hold the row");
    require(order_.empty() || order_.size() == lead_ * stride_, "order must fill the layout");
    for (uint32_t p : order_) require(p < n_features_, "order points outside the row");
    require(mix_.twice.empty() ? (lead_ & (lead_ - 1)) == 0 : mix_.twice.size() == lead_ * lead_,
            "lead must be a power of two, or have a matrix of its own");
    require(segment_.size() == n_rotated_ * terms_ && coefficient_.size() == n_rotated_ * terms_,
            "every rotated entry needs its terms");
    for (uint32_t at : segment_) require(at + stride_ <= lead_ * stride_, "a segment points outside the layout");
    for (uint32_t at : coefficient_)
      require(at + stride_ <= coefficients_.twice.size(), "a coefficient row lies outside the table");
  }

  size_t n_features_, n_rotated_, lead_, run_, stride_, terms_;
  Both signs_, mix_, coefficients_;
  std::vector<uint32_t> order_, segment_, coefficient_;
};

template <class T>
SketchTask<T> sketch_task(const Rows& rows, const RotationTables& rotation) {
  SketchTask<T> task;
  task.rows = static_cast<const T*>(rows.data());
  task.row_stride = row_stride(rows);
  task.n_rows = rows.shape(0);
  task.rotation = rotation.view<T>();
  return task;
}

double sketch(Rows rows, const RotationTables& rotation, uint64_t seed, uint64_t first_row, Array<uint32_t> shared,
              Array<uint32_t> free, OutputRows values, std::optional<OutputRows> indices) {
  Mask mask;
  mask.sketch_size = values.shape(1);
  mask.seed = seed;
  mask.first_row = first_row;
  mask.shared = shared.data();
  mask.n_shared = shared.size();
  mask.free = free.data();
  require(rows.shape(1) == rotation.n_features(), "rows are of another width than the rotation");
  require(values.shape(0) == rows.shape(0) && values.shape(1) > 0, "values must be n_rows x sketch_size");
  require(!indices || (indices->shape(0) == rows.shape(0) && indices->shape(1) == values.shape(1)),
          "indices must be n_rows x sketch_size");
  require(shared.size() + free.size() == rotation.n_rotated() && mask.n_shared <= mask.sketch_size &&
              mask.sketch_size <= rotation.n_rotated(),
          "shared and free coordinates must be those of the rotation");
  for (size_t i = 0; i < shared.size(); ++i)
    require(shared.data()[i] < rotation.n_rotated(), "shared out of range");
  for (size_t i = 0; i < free.size(); ++i) require(free.data()[i] < rotation.n_rotated(), "free out of range");
  double largest = 0;
  const auto run = [&](auto task, auto kernel) {
    task.mask = mask;
    task.values = values.data();
    task.value_type = value_type(values);
    if (indices) {
      task.indices = indices->data();
      task.index_type = index_type(*indices);
    }
    task.largest = &largest;
    const int n_threads = threads_for(task.n_rows / 32);
    nb::gil_scoped_release release;
    kernel(task, n_threads);
  };
  if (rows.dtype() == nb::dtype<float>()) {
    run(sketch_task<float>(rows, rotation), kernels.sketch_float);
  } else {
    require(rows.dtype() == nb::dtype<double>(), "rows must be float32 or float64");
    run(sketch_task<double>(rows, rotation), kernels.sketch_double);
  }
  return largest;
}

SketchView view(const Rows& values, const Rows& indices, size_t n_features) {
  require(n_features > 0, "rotated rows must have entries");
  SketchView sketch;
  require(values.shape(0) == indices.shape(0) && values.shape(1) == indices.shape(1),
          "values and indices must have the same shape");
  sketch.values = values.data();
  sketch.value_type = value_type(values);
  sketch.value_stride = row_stride(values);
  sketch.indices = indices.data();
  sketch.index_type = index_type(indices);
  sketch.index_stride = row_stride(indices);
  sketch.n_rows = values.shape(0);
  sketch.sketch_size = values.shape(1);
  sketch.last_index = static_cast<uint32_t>(n_features - 1);
  return sketch;
}

Gaussians gaussians(const Array<double>& log_weights, const Array<double>& means, const Array<double>& variances) {
  Gaussians g;
  g.n_components = log_weights.size();
  require(means.ndim() == 2 && means.shape(1) == g.n_components, "means must be n_features x n_components");
  g.n_features = means.shape(0);
  require(variances.size() == (variances.ndim() == 1 ? g.n_components : g.n_features * g.n_components),
          "variances must be n_features x n_components, or n_components");
  g.log_weights = log_weights.data();
  g.means = means.data();
  g.variances = variances.data();
  return g;
}

void statistics(Rows values, Rows indices, std::optional<Array<double>> sample_weight, Array<double> log_weights,
                Array<double> means, Array<double> variances, bool hard, bool double_precision, size_t shard_rows,
                Output<double> log_likelihood, Output<double> size, Output<double> count, Output<double> first,
                Output<double> second) {
  StatisticsTask task;
  task.gaussians = gaussians(log_weights, means, variances);
  task.sketch = view(values, indices, task.gaussians.n_features);
  task.hard = hard;
  task.double_precision = double_precision;
  task.shard_rows = shard_rows;
  if (sample_weight) {
    require(sample_weight->size() == task.sketch.n_rows, "sample_weight must have one entry a row");
    task.sample_weight = sample_weight->data();
  }
  require(shard_rows > 0 && log_likelihood.size() == 1 && size.size() == log_weights.size() &&
              count.size() == means.size() && first.size() == means.size() && second.size() == variances.size(),
          "the sums must be shaped like the parameters");
  task.moments = {log_likelihood.data(), size.data(), count.data(), first.data(), second.data()};
  const int n_threads = threads_for(task.sketch.n_rows / shard_rows + 1);
  const auto kernel = variances.ndim() == 1 ? kernels.spherical_statistics : kernels.diagonal_statistics;
  {
    nb::gil_scoped_release release;
    kernel(task, n_threads);
  }
}

void log_density(Rows values, Rows indices, Array<double> log_weights, Array<double> means,
                 Array<double> variances, bool double_precision, Output<double> out) {
  DensityTask task;
  task.gaussians = gaussians(log_weights, means, variances);
  task.sketch = view(values, indices, task.gaussians.n_features);
  task.double_precision = double_precision;
  require(out.size() == task.sketch.n_rows * task.gaussians.n_components, "out must be n_rows x n_components");
  task.log_density = out.data();
  const int n_threads = threads_for(task.sketch.n_rows / 256);
  const auto kernel = variances.ndim() == 1 ? kernels.spherical_log_density : kernels.diagonal_log_density;
  nb::gil_scoped_release release;
  kernel(task, n_threads);
}

LowRankGaussians low_rank_gaussians(const Array<double>& log_weights, const Array<double>& means,
                                    const Array<double>& factors, const Array<double>& noise) {
  LowRankGaussians g;
  g.n_components = log_weights.size();
  require(g.n_components > 0, "there must be a component");
  require(means.ndim() == 2 && means.shape(1) == g.n_components, "means must be n_features x n_components");
  g.n_features = means.shape(0);
  require(factors.ndim() == 3 && factors.shape(0) == g.n_components && factors.shape(1) == g.n_features &&
              factors.shape(2) > 0,
          "factors must be n_components x n_features x rank");
  require(noise.size() == g.n_components, "noise must have one entry a component");
  g.rank = factors.shape(2);
  g.log_weights = log_weights.data();
  g.means = means.data();
  g.factors = factors.data();
  g.noise = noise.data();
  return g;
}

void low_rank_statistics(Rows values, Rows indices, std::optional<Array<double>> sample_weight,
                         Array<double> log_weights, Array<double> means, Array<double> factors,
                         Array<double> noise, bool double_precision, size_t shard_rows,
                         Output<double> log_likelihood, Output<double> size, Output<double> second,
                         Output<double> cross, Output<double> energy) {
  LowRankStatisticsTask task;
  task.gaussians = low_rank_gaussians(log_weights, means, factors, noise);
  task.sketch = view(values, indices, task.gaussians.n_features);
  task.double_precision = double_precision;
  task.shard_rows = shard_rows;
  if (sample_weight) {
    require(sample_weight->size() == task.sketch.n_rows, "sample_weight must have one entry a row");
    task.sample_weight = sample_weight->data();
  }
  const LowRankGaussians& g = task.gaussians;
  require(shard_rows > 0 && log_likelihood.size() == 1 && size.size() == g.n_components &&
              energy.size() == g.n_components && second.size() == means.size() * g.triangle() &&
              cross.size() == means.size() * g.extended(),
          "the sums must be shaped like the parameters");
  task.moments = {log_likelihood.data(), size.data(), second.data(), cross.data(), energy.data()};
  const int n_threads = threads_for(task.sketch.n_rows / shard_rows + 1);
  {
    nb::gil_scoped_release release;
    kernels.low_rank_statistics(task, n_threads);
  }
}

void low_rank_posterior(Rows values, Rows indices, Array<double> log_weights, Array<double> means,
                        Array<double> factors, Array<double> noise, bool double_precision,
                        Output<double> log_density, std::optional<Output<double>> latent) {
  LowRankPosteriorTask task;
  task.gaussians = low_rank_gaussians(log_weights, means, factors, noise);
  task.sketch = view(values, indices, task.gaussians.n_features);
  task.double_precision = double_precision;
  const size_t n = task.sketch.n_rows * task.gaussians.n_components;
  require(log_density.size() == n && (!latent || latent->size() == n * task.gaussians.rank),
          "out must have one entry for each row and component");
  task.log_density = log_density.data();
  if (latent) task.latent = latent->data();
  const int n_threads = threads_for(task.sketch.n_rows / 256);
  nb::gil_scoped_release release;
  kernels.low_rank_posterior(task, n_threads);
}

void solve_each(Array<double> matrices, Array<double> right_sides, Output<double> solutions) {
  require(right_sides.ndim() == 2 && solutions.size() == right_sides.size(),
          "right sides and solutions must be n_systems x n_unknowns");
  SolveTask task;
  task.n_systems = right_sides.shape(0);
  task.n_unknowns = right_sides.shape(1);
  require(task.n_unknowns > 0, "there must be an unknown");
  require(matrices.size() == task.n_systems * (task.n_unknowns * (task.n_unknowns + 1) / 2),
          "matrices must be n_systems packed triangles");
  task.matrices = matrices.data();
  task.right_sides = right_sides.data();
  task.solutions = solutions.data();
  const int n_threads = threads_for(task.n_systems / 256);
  nb::gil_scoped_release release;
  kernels.solve_each(task, n_threads);
}

FullGaussians full_gaussians(const Array<double>& log_weights, const Array<double>& means,
                             const Array<double>& covariances) {
  FullGaussians g;
  g.n_components = log_weights.size();
  require(g.n_components > 0, "there must be a component");
  require(means.ndim() == 2 && means.shape(1) == g.n_components, "means must be n_features x n_components");
  g.n_features = means.shape(0);
  require(covariances.ndim() == 3 && covariances.shape(1) == g.n_features && covariances.shape(2) == g.n_features,
          "each of the covariances must be n_features x n_features");
  g.n_covariances = covariances.shape(0);
  require(g.n_covariances == 1 || g.n_covariances == g.n_components,
          "there must be a covariance for each component, or one for all");
  g.log_weights = log_weights.data();
  g.means = means.data();
  g.covariances = covariances.data();
  return g;
}

void full_statistics(Rows values, Rows indices, std::optional<Array<double>> sample_weight,
                     Array<double> log_weights, Array<double> means, Array<double> covariances, size_t shard_rows,
                     Output<double> log_likelihood, Output<double> size, Output<double> gradient,
                     Output<double> curvature) {
  FullStatisticsTask task;
  task.gaussians = full_gaussians(log_weights, means, covariances);
  task.sketch = view(values, indices, task.gaussians.n_features);
  task.shard_rows = shard_rows;
  if (sample_weight) {
    require(sample_weight->size() == task.sketch.n_rows, "sample_weight must have one entry a row");
    task.sample_weight = sample_weight->data();
  }
  require(shard_rows > 0 && log_likelihood.size() == 1 && size.size() == log_weights.size() &&
              gradient.size() == means.size() && curvature.size() == covariances.size(),
          "the sums must be shaped like the parameters");
  task.sums = {log_likelihood.data(), size.data(), gradient.data(), curvature.data()};
  const int n_threads = threads_for(task.sketch.n_rows / shard_rows + 1);
  {
    nb::gil_scoped_release release;
    kernels.full_statistics(task, n_threads);
  }
}

void full_log_density(Rows values, Rows indices, Array<double> log_weights, Array<double> means,
                      Array<double> covariances, Output<double> out) {
  FullDensityTask task;
  task.gaussians = full_gaussians(log_weights, means, covariances);
  task.sketch = view(values, indices, task.gaussians.n_features);
  require(out.size() == task.sketch.n_rows * task.gaussians.n_components, "out must be n_rows x n_components");
  task.log_density = out.data();
  const int n_threads = threads_for(task.sketch.n_rows / 64);
  nb::gil_scoped_release release;
  kernels.full_log_density(task, n_threads);
}

}  // namespace
}  // namespace sketchmix

NB_MODULE(_core, m) {
  using namespace sketchmix;
  m.doc() =
      "The kernels of sketchmix. Internal: sizes are checked; that indices lie inside is for the caller to see "
      "to.";
  // Python does not promise that everything is gone when it ends.
  nb::set_leak_warnings(false);
  m.attr("level") = kernels.level;
  m.def("max_threads", &max_threads, "Threads that the next kernel may use.");
  nb::class_<RotationTables>(m, "Rotation", "How a row is rotated; see Rotation in core/kernels.hpp.")
      .def(nb::init<size_t, size_t, size_t, size_t, size_t, size_t, Array<double>, std::optional<Array<uint32_t>>,
                    std::optional<Array<double>>, Array<uint32_t>, Array<uint32_t>, Array<double>>(),
           nb::kw_only(), "n_features"_a, "n_rotated"_a, "lead"_a, "run"_a, "stride"_a, "terms"_a, "signs"_a,
           "order"_a.none(), "mix"_a.none(), "segment"_a, "coefficient"_a, "coefficients"_a);
  m.def("sketch", &sketch, "rows"_a, "rotation"_a, "seed"_a, "first_row"_a, "shared"_a, "free"_a, "values"_a,
        "indices"_a.none(),
        "Rotate rows and keep some entries of each, into `values` and `indices`; returns the largest magnitude "
        "kept.");
  m.def("statistics", &statistics, "values"_a, "indices"_a, "sample_weight"_a.none(), "log_weights"_a, "means"_a,
        "variances"_a, "hard"_a, "double_precision"_a, "shard_rows"_a, "log_likelihood"_a, "size"_a, "count"_a,
        "first"_a, "second"_a, "Add one pass of EM to the given sums.");
  m.def("log_density", &log_density, "values"_a, "indices"_a, "log_weights"_a, "means"_a, "variances"_a,
        "double_precision"_a, "out"_a, "Log weight plus log density of every row under every component.");
  m.def("low_rank_statistics", &low_rank_statistics, "values"_a, "indices"_a, "sample_weight"_a.none(),
        "log_weights"_a, "means"_a, "factors"_a, "noise"_a, "double_precision"_a, "shard_rows"_a,
        "log_likelihood"_a, "size"_a, "second"_a, "cross"_a, "energy"_a,
        "Add one pass of EM for low-rank covariances to the given sums.");
  m.def("low_rank_posterior", &low_rank_posterior, "values"_a, "indices"_a, "log_weights"_a, "means"_a,
        "factors"_a, "noise"_a, "double_precision"_a, "log_density"_a, "latent"_a.none(),
        "Log weight plus log density, and the expected coordinates, of every row in every component.");
  m.def("solve_each", &solve_each, "matrices"_a, "right_sides"_a, "solutions"_a,
        "Solve symmetric positive semi-definite systems, lower triangles packed row by row.");
  m.def("full_statistics", &full_statistics, "values"_a, "indices"_a, "sample_weight"_a.none(), "log_weights"_a,
        "means"_a, "covariances"_a, "shard_rows"_a, "log_likelihood"_a, "size"_a, "gradient"_a, "curvature"_a,
        "Add one pass of EM under any covariances to the given sums.");
  m.def("full_log_density", &full_log_density, "values"_a, "indices"_a, "log_weights"_a, "means"_a,
        "covariances"_a, "out"_a, "As `log_density`, under any covariances.");
}
