// The kernels of one instruction set, as a table.
#include "kernels.hpp"
#include "simd.hpp"

#define SKETCHMIX_NAME_OF(level) #level
#define SKETCHMIX_NAME(level) SKETCHMIX_NAME_OF(level)

namespace sketchmix::SKETCHMIX_LEVEL {

void sketch_float(const SketchTask<float>& task, int n_threads);
void sketch_double(const SketchTask<double>& task, int n_threads);
void diagonal_statistics(const StatisticsTask& task, int n_threads);
void spherical_statistics(const StatisticsTask& task, int n_threads);
void diagonal_log_density(const DensityTask& task, int n_threads);
void spherical_log_density(const DensityTask& task, int n_threads);
void low_rank_statistics(const LowRankStatisticsTask& task, int n_threads);
void low_rank_posterior(const LowRankPosteriorTask& task, int n_threads);
void solve_each(const SolveTask& task, int n_threads);
void full_statistics(const FullStatisticsTask& task, int n_threads);
void full_log_density(const FullDensityTask& task, int n_threads);

const Kernels kernels = {
    SKETCHMIX_NAME(SKETCHMIX_LEVEL),
    sketch_float,
    sketch_double,
    diagonal_statistics,
    spherical_statistics,
    diagonal_log_density,
    spherical_log_density,
    low_rank_statistics,
    low_rank_posterior,
    solve_each,
    full_statistics,
    full_log_density,
};

}  // namespace sketchmix::SKETCHMIX_LEVEL
