// Packed weights at the border to Python: made, filled, stored.
//
// Owns: the class `PackedWeight`. The interpreter lock is released while one is filled.
// Read next: module.cpp, weight.hpp; ../packing.py, which calls.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace firsthand;

namespace {

template <class T, int D>
using In = nb::ndarray<const T, nb::ndim<D>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyMatrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

Kind kind_of(const std::string& name) {
  const std::pair<const char*, Kind> kinds[] = {
      {"float32", Kind::float32}, {"float16", Kind::float16},   {"bfloat16", Kind::bfloat16},
      {"channel", Kind::channel}, {"grouped8", Kind::grouped8}, {"grouped4", Kind::grouped4}};
  for (const auto& [text, kind] : kinds)
    if (name == text) return kind;
  throw std::invalid_argument("no such format: " + name);
}

using Stored = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

// The two parts of a weight that are kept, as views: its panels, and its scales if it has them
// apart.
std::pair<Bytes, Bytes> parts(nb::handle_t<PackedWeight> self) {
  const PackedWeight& w = nb::cast<const PackedWeight&>(self);
  const auto panels = static_cast<size_t>(w.num_bytes),
             scales = static_cast<size_t>(w.scale_bytes());
  return {Bytes(w.data.get(), {panels}, self),
          Bytes(reinterpret_cast<const uint8_t*>(w.scales.get()), {scales}, self)};
}

void check_rows(const PackedWeight& w, int64_t row0, const AnyMatrix& values) {
  require(w.owned, "the weight lies in memory that is only read");
  const auto rows = static_cast<int64_t>(values.shape(0));
  require(row0 >= 0 && rows <= w.n && row0 <= w.n - rows, "rows outside the weight");
  require(static_cast<int64_t>(values.shape(1)) == w.k, "row of wrong length");
}

void fill_float(PackedWeight& w, int64_t row0, const AnyMatrix& values) {
  check_rows(w, row0, values);
  require(w.is_float() && values.itemsize() == (w.kind == Kind::float32 ? 4u : 2u),
          "values do not fit the format");
  const nb::gil_scoped_release release;
  w.fill_float(row0, static_cast<int64_t>(values.shape(0)), values.data());
}

void fill_channel(PackedWeight& w, int64_t row0, const AnyMatrix& codes,
                  const In<float, 1>& scales) {
  check_rows(w, row0, codes);
  require(w.kind == Kind::channel && codes.itemsize() == 1 && scales.shape(0) == codes.shape(0),
          "codes or scales do not fit the format");
  const nb::gil_scoped_release release;
  w.fill_channel(row0, static_cast<int64_t>(codes.shape(0)),
                 static_cast<const int8_t*>(codes.data()), scales.data());
}

void fill_grouped(PackedWeight& w, int64_t row0, const AnyMatrix& codes, const AnyMatrix& scales,
                  const std::optional<AnyMatrix>& minima) {
  check_rows(w, row0, codes);
  const size_t scale_bytes = w.half_scales ? 2 : 4;
  const auto fits = [&](const AnyMatrix& a) {
    return a.itemsize() == scale_bytes && a.shape(0) == codes.shape(0) &&
           static_cast<int64_t>(a.shape(1)) == w.num_groups;
  };
  require((w.kind == Kind::grouped8 || w.kind == Kind::grouped4) && codes.itemsize() == 1 &&
              fits(scales) && w.has_minimum == minima.has_value() && (!minima || fits(*minima)),
          "codes, scales or minima do not fit the format");
  const nb::gil_scoped_release release;
  w.fill_grouped(row0, static_cast<int64_t>(codes.shape(0)),
                 static_cast<const uint8_t*>(codes.data()), scales.data(),
                 minima ? minima->data() : nullptr);
}

void decode_rows(const PackedWeight& w, const In<int32_t, 1>& rows, const Matrix& out,
                 const std::string& isa) {
  require(out.shape(0) == rows.shape(0) && static_cast<int64_t>(out.shape(1)) == w.k,
          "out must be (rows, k)");
  for (size_t i = 0; i < rows.shape(0); ++i)
    require(rows.data()[i] >= 0 && rows.data()[i] < w.n, "row out of range");
  const EmbedCall call{&w, rows.data(), out.data()};
  choose_kernels(isa.c_str()).embed(call, 0, static_cast<int64_t>(rows.shape(0)));
}

}  // namespace

void bind_weights(nb::module_& m) {
  nb::class_<PackedWeight>(m, "PackedWeight")
      .def(
          "__init__",
          [](PackedWeight* self, const std::string& kind, int64_t n, int64_t k, int64_t group,
             bool half_scales, bool has_minimum, int32_t zero,
             const std::optional<Stored>& stored) {
            if (stored)
              new (self) PackedWeight(kind_of(kind), n, k, group, half_scales, has_minimum, zero,
                                      stored->data(), static_cast<int64_t>(stored->shape(0)));
            else
              new (self) PackedWeight(kind_of(kind), n, k, group, half_scales, has_minimum, zero);
          },
          "kind"_a, "n"_a, "k"_a, "group"_a = 0, "half_scales"_a = false, "has_minimum"_a = false,
          "zero"_a = 0, "stored"_a = nb::none(), nb::keep_alive<1, 9>())
      .def_prop_ro("n", [](const PackedWeight& w) { return w.n; })
      .def_prop_ro("k", [](const PackedWeight& w) { return w.k; })
      .def_prop_ro("num_bytes", &PackedWeight::held_bytes)
      .def_prop_ro("stored_bytes", &PackedWeight::stored_bytes)
      .def_prop_ro("stored_scales_at", &PackedWeight::stored_scales_at)
      .def("parts", [](nb::handle_t<PackedWeight> self) { return parts(self); })
      .def("fill_float", &fill_float, "row0"_a, "values"_a)
      .def("fill_channel", &fill_channel, "row0"_a, "codes"_a, "scales"_a)
      .def("fill_grouped", &fill_grouped, "row0"_a, "codes"_a, "scales"_a, "minima"_a.none())
      .def("decode_rows", &decode_rows, "rows"_a, "out"_a, "isa"_a = "");
}
