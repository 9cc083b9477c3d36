// What this machine can do at most: bare loops that do nothing but multiply, or read.
//
// Owns: the table of loops of one instruction set, and the timing of a loop on several threads.
// May not know: Python, models, kernels. A limit is measured by loops of its own, so that a slow
// kernel cannot lower it.
// Read next: limit_loops.cpp (the loops), limits.cpp (the timing).
#pragma once

#include <cstdint>
#include <vector>

#include "threads.hpp"

namespace firsthand {

enum class LimitKind : int32_t { int8, fp32 };

struct LimitLoop {
  const char* name;
  LimitKind kind;
  int64_t work_per_pass;  // int8: multiply-accumulates; fp32: operations, two per multiply-add
  uint64_t (*run)(int64_t passes);  // the result is there only so that nothing is left out
};

struct LimitLoops {
  const char* isa;
  const LimitLoop* loops;
  int count;
  uint64_t (*read)(const uint8_t* data, int64_t num_bytes);        // num_bytes a multiple of 512
  uint64_t (*read_ahead)(const uint8_t* data, int64_t num_bytes);  // the same, with prefetches
};

namespace portable {
extern const LimitLoops limit_loops;
}
namespace avx2 {
extern const LimitLoops limit_loops;
}
namespace avx512 {
extern const LimitLoops limit_loops;
}
namespace neon {
extern const LimitLoops limit_loops;
}

// The tables of the instruction sets that this machine runs, the widest first.
std::vector<const LimitLoops*> runnable_limit_loops();

// 10⁹ of the loop's work per second, all threads together: the best of windows that together take
// about `ms`.
double loop_rate(const LimitLoop& loop, Threads& threads, double ms);

// 10⁹ bytes per second when `num_bytes` are read again and again: the best pass of every way to
// read, each way for about `ms`. Throws std::bad_alloc.
double read_rate(int64_t num_bytes, Threads& threads, double ms);

}  // namespace firsthand
