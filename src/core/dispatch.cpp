#include "dispatch.hpp"

#include <cstdlib>
#include <cstring>

namespace sketchmix {
namespace {

enum Level { baseline_level, avx2_level, avx512_level };

Level level_of_cpu() {
#if defined(SKETCHMIX_X86)
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")))
    return baseline_level;
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")))
    return avx2_level;
  return avx512_level;
#else
  return baseline_level;
#endif
}

Level level_wanted() {
  const char* name = std::getenv("SKETCHMIX_CPU");
  if (name && std::strcmp(name, "baseline") == 0) return baseline_level;
  if (name && std::strcmp(name, "avx2") == 0) return avx2_level;
  return avx512_level;
}

}  // namespace

const Kernels& best_kernels() {
  const Level has = level_of_cpu(), wanted = level_wanted();
#if defined(SKETCHMIX_X86)
  const Level level = wanted < has ? wanted : has;
  if (level == avx512_level) return avx512::kernels;
  if (level == avx2_level) return avx2::kernels;
#else
  static_cast<void>(has), static_cast<void>(wanted);
#endif
  return baseline::kernels;
}

}  // namespace sketchmix
