// The sampler's loops over a whole row, one table of functions per instruction set.
//
// Owns: what each loop gives, to the last bit, on every set; the vectors of sampler_kernels.cpp.
// May not know: settings, filters, Python, threads.
// Read next: sampler_kernels.cpp, then sampler.cpp, which puts them together.
#pragma once

#include <cstdint>

namespace firsthand::sampler {

constexpr int64_t kBlock = 256;  // tokens whose masses are summed together
constexpr int64_t kGroup = 64;   // tokens whose maximum is found together

// max is −infinity for a row of nothing else (NaN does not count); first is the lowest id that has
// it. They mean nothing where has_nan is set.
struct Peak {
  double max;
  int64_t first;
  bool has_nan;
};

// Of the row's logits: the highest, and what they are divided by.
struct Scale {
  double max, temperature;
};

template <class T>
struct RowLoops {
  Peak (*peak)(const T* x, int64_t n);
  // masses[i] = round(2⁴³ · exp((x[i] − max) / temperature))
  void (*masses)(const T* x, int64_t n, Scale scale, uint64_t* masses);
  // Their sums over each kBlock tokens; the sum of all.
  uint64_t (*block_masses)(const T* x, int64_t n, Scale scale, uint64_t* sums);
  // The maximum of each kGroup tokens.
  void (*group_maxima)(const T* x, int64_t n, T* maxima);
  // The ids whose logit is at least `least`, rising; how many. `ids` holds n.
  int64_t (*collect)(const T* x, int64_t n, T least, int32_t* ids);
};

struct RowKernels {
  const char* name;
  RowLoops<float> raw;
  RowLoops<double> adjusted;
  // Σ exp(x − max) over 16 lanes (lane = id mod 16) in the order of ids, then over a fixed tree.
  double (*sum_exp)(const float* x, int64_t n, double max);
};

namespace portable {
extern const RowKernels row_kernels;
}
namespace avx2 {
extern const RowKernels row_kernels;
}
namespace avx512 {
extern const RowKernels row_kernels;
}
namespace neon {
extern const RowKernels row_kernels;
}

// The table of the set that `choose_kernels` takes.
const RowKernels& choose_row_kernels(const char* forced);

}  // namespace firsthand::sampler
