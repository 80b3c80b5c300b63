// Which build of the kernels this machine runs.
#pragma once

#include "kernels.hpp"

namespace sketchmix {

// The best level that the CPU has. The environment variable SKETCHMIX_CPU (baseline, avx2 or avx512) may
// ask for a lower one; a name that is unknown, or a level that this CPU lacks, leaves the best.
const Kernels& best_kernels();

}  // namespace sketchmix
