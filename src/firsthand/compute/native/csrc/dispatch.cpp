// Which of the instruction sets this machine runs, and which one is taken.
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.hpp"

namespace firsthand {

namespace {

struct Choice {
  const Kernels* kernels;
  bool runs_here;
};

}  // namespace

const Kernels& choose_kernels(const char* forced) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
#if defined(FIRSTHAND_EMULATED)
  const bool has_avx512 = has_avx2;  // that table is plain code: tests/compute/native
#else
  const bool has_avx512 =
      has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni");
#endif
  const Choice choices[] = {
      {&avx512::kernels, has_avx512}, {&avx2::kernels, has_avx2}, {&portable::kernels, true}};
#elif defined(__aarch64__)
  const Choice choices[] = {{&neon::kernels, true}, {&portable::kernels, true}};
#else
  const Choice choices[] = {{&portable::kernels, true}};
#endif
  for (const Choice& choice : choices) {
    if (forced == nullptr || *forced == '\0') {
      if (choice.runs_here) return *choice.kernels;
    } else if (std::strcmp(forced, choice.kernels->name) == 0) {
      if (choice.runs_here) return *choice.kernels;
      throw std::invalid_argument(std::string("this machine cannot run ") + forced);
    }
  }
  throw std::invalid_argument(std::string("no such instruction set: ") + forced);
}

}  // namespace firsthand
