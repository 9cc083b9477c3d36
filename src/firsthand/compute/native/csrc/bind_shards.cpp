// Python's view of weights that are swapped.
//
// Owns: the check of the arguments.
// May not know: when a shard is read.
// Read next: shards.hpp, ../shards.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "plan.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace firsthand;

namespace {

using Map = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ranges = std::vector<std::pair<int64_t, int64_t>>;
using Given = std::tuple<int64_t, int64_t, Ranges, Ranges>;  // first, last, ahead, behind

std::vector<FileRange> ranges_of(const Ranges& given) {
  std::vector<FileRange> ranges;
  for (const auto& [offset, num_bytes] : given) ranges.push_back({offset, num_bytes});
  return ranges;
}

void swap(Plan& plan, const Map& map, int file, const std::vector<Given>& given) {
  std::vector<Shard> shards;
  for (const auto& [first, last, ahead, behind] : given)
    shards.push_back({first, last, ranges_of(ahead), ranges_of(behind)});
  plan.swap(std::make_unique<Shards>(map.data(), static_cast<int64_t>(map.shape(0)), file,
                                     std::move(shards)));
}

std::pair<int64_t, double> swapped(const Plan& plan) {
  const Shards* shards = plan.shards();
  return shards ? std::pair{shards->read_bytes(), shards->wait_ms()} : std::pair{int64_t{0}, 0.0};
}

}  // namespace

void bind_shards(nb::module_& m) {
  m.def("swap", &swap, "plan"_a, "map"_a, "file"_a, "shards"_a, nb::keep_alive<1, 2>());
  m.def("swapped", &swapped, "plan"_a);
}
