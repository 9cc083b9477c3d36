// The sampler's loops, in vectors of eight doubles. Compiled once per set; see CMakeLists.txt.
//
// Everything here has internal linkage and nothing is from the standard library: a function shared
// with another set's compilation could be the one of a set that this machine cannot run.
#include "sampler_kernels.hpp"

#include "sampler_math.hpp"

namespace firsthand::sampler::FIRSTHAND_ISA {
namespace {

constexpr int64_t kWide = 8;
constexpr int64_t kStripe = 16;
using Float8 [[gnu::vector_size(32)]] = float;
using Double8 [[gnu::vector_size(64)]] = double;
using Bits8 [[gnu::vector_size(64)]] = uint64_t;
using Float16 [[gnu::vector_size(64)]] = float;
template <class T>
struct LanesOf {
  using type = Float16;
};
template <>
struct LanesOf<double> {
  using type = Double8;
};

constexpr float kLowest = -__builtin_inff();

#define FIRSTHAND_INLINE [[gnu::always_inline]] inline

FIRSTHAND_INLINE void load(const float* x, Double8& wide) {
  Float8 narrow;
  __builtin_memcpy(&narrow, x, sizeof(narrow));
  wide = __builtin_convertvector(narrow, Double8);
}
FIRSTHAND_INLINE void load(const double* x, Double8& wide) {
  __builtin_memcpy(&wide, x, sizeof(wide));
}
// The first n of them, and −infinity, whose mass is 0.
template <class T>
FIRSTHAND_INLINE void load_first(const T* x, int64_t n, Double8& wide) {
  for (int64_t i = 0; i < kWide; ++i) wide[i] = i < n ? double{x[i]} : double{kLowest};
}

FIRSTHAND_INLINE void mass_of(Double8 logits, Scale scale, Bits8& mass) {
  constexpr double kRound = 0x1p52;  // adding it rounds a mass to a whole number in the low bits
  const Double8 weight = exp_kernel<Double8, Bits8>((logits - scale.max) / scale.temperature);
  mass = __builtin_bit_cast(Bits8, weight * 0x1p43 + kRound) - __builtin_bit_cast(uint64_t, kRound);
}

template <class T>
void masses(const T* x, int64_t n, Scale scale, uint64_t* out) {
  Double8 logits;
  Bits8 mass;
  int64_t i = 0;
  for (; i + kWide <= n; i += kWide) {
    load(x + i, logits);
    mass_of(logits, scale, mass);
    __builtin_memcpy(out + i, &mass, sizeof(mass));
  }
  if (i == n) return;
  load_first(x + i, n - i, logits);
  mass_of(logits, scale, mass);
  for (int64_t j = 0; i + j < n; ++j) out[i + j] = mass[j];
}

template <class T>
uint64_t block_masses(const T* x, int64_t n, Scale scale, uint64_t* sums) {
  uint64_t total = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t end = start + kBlock < n ? start + kBlock : n;
    Double8 logits;
    Bits8 mass, acc = {};
    int64_t i = start;
    for (; i + kWide <= end; i += kWide) {
      load(x + i, logits);
      mass_of(logits, scale, mass);
      acc += mass;
    }
    if (i < end) {
      load_first(x + i, end - i, logits);
      mass_of(logits, scale, mass);
      acc += mass;
    }
    uint64_t sum = 0;
    for (int64_t j = 0; j < kWide; ++j) sum += acc[j];
    sums[start / kBlock] = sum;
    total += sum;
  }
  return total;
}

// Blocks, so that the lowest id needs a second look at one of them only.
template <class T>
Peak peak(const T* x, int64_t n) {
  using Lanes = typename LanesOf<T>::type;
  constexpr int64_t kCount = sizeof(Lanes) / sizeof(T), kPeakBlock = 64 * kCount;
  const Lanes lowest = Lanes{} + T{kLowest};
  auto nan = lowest != lowest;
  T best = T{kLowest};
  int64_t block = 0, start = 0;
  for (; start + kPeakBlock <= n; start += kPeakBlock) {
    Lanes acc[4] = {lowest, lowest, lowest, lowest};
    for (int64_t i = start; i < start + kPeakBlock; i += 4 * kCount) {
      for (int64_t j = 0; j < 4; ++j) {
        Lanes value;
        __builtin_memcpy(&value, x + i + j * kCount, sizeof(value));
        acc[j] = value > acc[j] ? value : acc[j];
        nan |= value != value;
      }
    }
    acc[0] = acc[0] > acc[1] ? acc[0] : acc[1];
    acc[2] = acc[2] > acc[3] ? acc[2] : acc[3];
    acc[0] = acc[0] > acc[2] ? acc[0] : acc[2];
    T found = T{kLowest};
    for (int64_t j = 0; j < kCount; ++j) found = acc[0][j] > found ? acc[0][j] : found;
    if (found > best) {
      best = found;
      block = start;
    }
  }
  bool has_nan = false;
  for (int64_t j = 0; j < kCount; ++j) has_nan |= nan[j] != 0;
  for (int64_t i = start; i < n; ++i) {
    has_nan |= x[i] != x[i];
    if (x[i] > best) {
      best = x[i];
      block = start;
    }
  }
  int64_t first = block;
  while (first + 1 < n && x[first] != best) ++first;
  return {double{best}, first, has_nan};
}

template <class T>
void group_maxima(const T* x, int64_t n, T* maxima) {
  for (int64_t start = 0; start < n; start += kGroup) {
    T lanes[kStripe];
    for (T& lane : lanes) lane = T{kLowest};
    const int64_t end = start + kGroup < n ? start + kGroup : n;
    int64_t i = start;
    for (; i + kStripe <= end; i += kStripe) {
      for (int64_t j = 0; j < kStripe; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    }
    for (; i < end; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    for (int64_t j = 1; j < kStripe; ++j) lanes[0] = lanes[j] > lanes[0] ? lanes[j] : lanes[0];
    maxima[start / kGroup] = lanes[0];
  }
}

template <class T>
int64_t collect(const T* x, int64_t n, T least, int32_t* ids) {
  int64_t count = 0, start = 0;
  for (; start + kGroup <= n; start += kGroup) {
    int32_t any = 0;
    for (int64_t j = 0; j < kGroup; ++j) any |= x[start + j] >= least;
    if (!any) continue;
    for (int64_t j = 0; j < kGroup; ++j) {
      ids[count] = static_cast<int32_t>(start + j);
      count += x[start + j] >= least;
    }
  }
  for (; start < n; ++start) {
    if (x[start] >= least) ids[count++] = static_cast<int32_t>(start);
  }
  return count;
}

double sum_exp(const float* x, int64_t n, double max) {
  Double8 low = {}, high = {}, logits;
  const int64_t whole = n - n % kStripe;
  for (int64_t i = 0; i < whole; i += kStripe) {
    load(x + i, logits);
    low += exp_kernel<Double8, Bits8>(logits - max);
    load(x + i + kWide, logits);
    high += exp_kernel<Double8, Bits8>(logits - max);
  }
  double lanes[kStripe];
  __builtin_memcpy(lanes, &low, sizeof(low));
  __builtin_memcpy(lanes + kWide, &high, sizeof(high));
  for (int64_t i = whole; i < n; ++i) {
    lanes[i - whole] += exp_kernel<double, uint64_t>(double{x[i]} - max);
  }
  for (int64_t half = kStripe / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

}  // namespace

#define FIRSTHAND_QUOTE(x) #x
#define FIRSTHAND_NAME(x) FIRSTHAND_QUOTE(x)

extern const RowKernels row_kernels;
const RowKernels row_kernels = {
    FIRSTHAND_NAME(FIRSTHAND_ISA),
    {peak, masses, block_masses, group_maxima, collect},
    {peak, masses, block_masses, group_maxima, collect},
    sum_exp,
};

}  // namespace firsthand::sampler::FIRSTHAND_ISA
