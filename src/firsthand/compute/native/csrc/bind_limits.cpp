// Python's view of the machine's limits.
//
// Owns: the check of the arguments. The interpreter lock is released while a loop runs.
// May not know: what a loop does.
// Read next: limits.hpp.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "limits.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr double kMaxMs = 1000.0;
constexpr int64_t kMaxReadBytes = int64_t{1} << 40;

struct Found {
  const char* isa;
  const firsthand::LimitLoop* loop;
};

std::vector<Found> all_loops() {
  std::vector<Found> found;
  for (const firsthand::LimitLoops* table : firsthand::runnable_limit_loops())
    for (int i = 0; i < table->count; ++i) found.push_back({table->isa, &table->loops[i]});
  return found;
}

void check_ms(double ms) {
  if (!(ms > 0.0 && ms <= kMaxMs)) throw std::invalid_argument("ms must be above 0, at most 1000");
}

std::vector<std::tuple<std::string, std::string, std::string>> limit_loops() {
  std::vector<std::tuple<std::string, std::string, std::string>> names;
  for (const Found& found : all_loops()) {
    const bool is_float = found.loop->kind == firsthand::LimitKind::fp32;
    names.emplace_back(found.isa, found.loop->name, is_float ? "fp32" : "int8");
  }
  return names;
}

double loop_rate(int64_t index, firsthand::Threads& threads, double ms) {
  check_ms(ms);
  const std::vector<Found> found = all_loops();
  if (index < 0 || index >= static_cast<int64_t>(found.size()))
    throw std::invalid_argument("no such loop");
  const nb::gil_scoped_release release;
  return firsthand::loop_rate(*found[static_cast<size_t>(index)].loop, threads, ms);
}

double read_rate(int64_t num_bytes, firsthand::Threads& threads, double ms) {
  check_ms(ms);
  if (num_bytes < 1 || num_bytes > kMaxReadBytes)
    throw std::invalid_argument("num_bytes must be at least 1 and at most 2^40");
  const nb::gil_scoped_release release;
  return firsthand::read_rate(num_bytes, threads, ms);
}

}  // namespace

void bind_limits(nb::module_& m) {
  m.def("limit_loops", &limit_loops);
  m.def("loop_rate", &loop_rate, "index"_a, "threads"_a, "ms"_a);
  m.def("read_rate", &read_rate, "num_bytes"_a, "threads"_a, "ms"_a);
}
