// The border to Python: types and arrays are checked here, nothing is computed here.
//
// Owns: the names that native/executor.py calls, but for weights (bind_weights.cpp), sampler, limits
// and shards. The interpreter lock is released while a plan runs.
// Read next: ../executor.py, plan.hpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "plan.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace firsthand;

void bind_weights(nb::module_& m);
void bind_sampler(nb::module_& m);
void bind_limits(nb::module_& m);
void bind_shards(nb::module_& m);

namespace {

template <class T, int D>
using In = nb::ndarray<const T, nb::ndim<D>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using CacheElements = nb::ndarray<nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using CacheScales = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using CacheLayer = std::tuple<CacheElements, CacheElements, std::optional<CacheScales>,
                              std::optional<CacheScales>>;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

Vector padded(const std::optional<In<float, 1>>& values) {
  if (!values) return {};
  Vector copy((values->shape(0) + 15) / 16 * 16, 0.0f);
  std::copy(values->data(), values->data() + values->shape(0), copy.begin());
  return copy;
}

Activation activation_of(const std::string& name) {
  if (name.empty()) return Activation::none;
  if (name == "silu") return Activation::silu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  throw std::invalid_argument("no such activation: " + name);
}

// cos and sin (positions, d / 2) as a plan computes them; for tests.
void rotation(const In<int32_t, 1>& positions, const std::vector<double>& frequencies,
              double factor, const Matrix& cosine, const Matrix& sine, const std::string& isa) {
  for (const auto& out : {cosine, sine})
    require(out.shape(0) == positions.shape(0) && out.shape(1) == frequencies.size(),
            "cosine and sine must be (positions, frequencies)");
  const RotationCall call{positions.data(), frequencies.data(),
                          factor,           cosine.data(),
                          sine.data(),      static_cast<int32_t>(2 * frequencies.size())};
  choose_kernels(isa.c_str()).rotation(call, 0, static_cast<int64_t>(positions.shape(0)));
}

// One layer as compute/native/executor.py hands it over: keys, values, and of codes their scales.
Cache cache_of(const CacheLayer& layer, int64_t num_tiles, bool tiles, int g, int d) {
  const auto& [keys, values, key_scales, value_scales] = layer;
  const auto has_shape = [](const auto& array, std::initializer_list<int64_t> shape) {
    size_t axis = 0;
    for (const int64_t length : shape)
      if (static_cast<int64_t>(array.shape(axis++)) != length) return false;
    return true;
  };
  require(
      tiles ? has_shape(keys, {num_tiles, g, d, kTile}) : has_shape(keys, {num_tiles, kTile, g, d}),
      "store: layers differ in shape");
  require(tiles ? has_shape(values, {num_tiles, g, kTile, d})
                : has_shape(values, {num_tiles, kTile, g, d}),
          "store: layers differ in shape");
  const size_t size = keys.itemsize();
  const bool is_float = keys.dtype().code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
  require(values.dtype() == keys.dtype() && (size == 2 || size == (is_float ? 4 : 1)),
          "store: float32, float16, int16 or int8");
  const CacheKind kind = size == 4   ? CacheKind::float32
                         : size == 1 ? CacheKind::int8
                         : is_float  ? CacheKind::float16
                                     : CacheKind::int16;
  require(is_float != key_scales.has_value() && key_scales.has_value() == value_scales.has_value(),
          "store: scales belong to int8 and int16");
  if (key_scales)
    for (const CacheScales& scales : {*key_scales, *value_scales})
      require(tiles ? has_shape(scales, {num_tiles, g, kTile})
                    : has_shape(scales, {num_tiles, kTile, g}),
              "store: scales of another shape than the keys");
  return {keys.data(),
          values.data(),
          key_scales ? key_scales->data() : nullptr,
          value_scales ? value_scales->data() : nullptr,
          kind,
          tiles,
          g,
          d};
}

void bind_store(Plan& plan, const std::vector<CacheLayer>& layers, bool tiles) {
  require(!layers.empty(), "store: no layers");
  const CacheElements& first = std::get<0>(layers[0]);
  const auto num_tiles = static_cast<int64_t>(first.shape(0));
  const int g = static_cast<int>(first.shape(tiles ? 1 : 2));
  const int d = static_cast<int>(first.shape(tiles ? 2 : 3));
  std::vector<Cache> caches;
  for (const CacheLayer& layer : layers) {
    require(std::get<0>(layer).dtype() == first.dtype(), "store: layers differ in type");
    caches.push_back(cache_of(layer, num_tiles, tiles, g, d));
  }
  plan.bind_store(std::move(caches), num_tiles * kTile);
}

using Logits = nb::ndarray<nb::numpy, const float, nb::ndim<2>>;

std::pair<Logits, std::vector<double>> run(
    nb::handle_t<Plan> self, const In<int32_t, 1>& token_ids, const In<int32_t, 1>& positions,
    const In<int32_t, 1>& row_starts, const In<int64_t, 2>& block_starts, int64_t block_size,
    const In<int32_t, 1>& logit_rows, bool trace, const std::optional<In<int32_t, 1>>& adapters,
    const std::optional<In<float, 2>>& received, const std::optional<Matrix>& sent) {
  Plan& plan = nb::cast<Plan&>(self);
  require(row_starts.shape(0) >= 2 && positions.shape(0) == token_ids.shape(0) &&
              block_starts.shape(0) + 1 == row_starts.shape(0),
          "batch: arrays differ in length");
  require(!adapters || adapters->shape(0) + 1 == row_starts.shape(0),
          "batch: one adapter per sequence");
  const auto fits = [&](const auto& rows, int64_t width) {
    return !rows ||
           (rows->shape(0) == token_ids.shape(0) && static_cast<int64_t>(rows->shape(1)) == width);
  };
  require(fits(received, plan.received_width()) && fits(sent, plan.sent_width()),
          "batch: rows between two plans have the wrong shape");
  const Batch batch{token_ids.data(),
                    positions.data(),
                    row_starts.data(),
                    block_starts.data(),
                    logit_rows.data(),
                    adapters ? adapters->data() : nullptr,
                    static_cast<int64_t>(token_ids.shape(0)),
                    static_cast<int64_t>(row_starts.shape(0)) - 1,
                    static_cast<int64_t>(block_starts.shape(1)),
                    block_size,
                    static_cast<int64_t>(logit_rows.shape(0)),
                    received ? received->data() : nullptr,
                    sent ? sent->data() : nullptr};
  std::vector<double> times;
  const float* logits;
  {
    const nb::gil_scoped_release release;
    logits = plan.run(batch, trace ? &times : nullptr);
  }
  const size_t shape[2] = {logit_rows.shape(0), static_cast<size_t>(plan.vocab())};
  return {Logits(logits, 2, shape, self), std::move(times)};
}

Logits logits(nb::handle_t<Plan> self, const In<int32_t, 1>& rows) {
  Plan& plan = nb::cast<Plan&>(self);
  const float* found;
  {
    const nb::gil_scoped_release release;
    found = plan.logits(rows.data(), static_cast<int64_t>(rows.shape(0)));
  }
  const size_t shape[2] = {rows.shape(0), static_cast<size_t>(plan.vocab())};
  return Logits(found, 2, shape, self);
}

void hidden(Plan& plan, const In<int32_t, 1>& rows, const Matrix& out) {
  require(
      out.shape(0) == rows.shape(0) && static_cast<int64_t>(out.shape(1)) == plan.hidden_width(),
      "hidden: the result has the wrong shape");
  const nb::gil_scoped_release release;
  plan.hidden(rows.data(), static_cast<int64_t>(rows.shape(0)), out.data());
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels, plan and sampler of the native executor.";
  m.def(
      "isa", [](const std::string& forced) { return choose_kernels(forced.c_str()).name; },
      "forced"_a = "");

  m.def("rotation", &rotation, "positions"_a, "frequencies"_a, "factor"_a, "cosine"_a, "sine"_a,
        "isa"_a = "");

  bind_weights(m);
  nb::class_<Threads>(m, "Threads")
      .def(nb::init<int>(), "count"_a)
      .def_prop_ro("count", &Threads::count);

  nb::class_<Plan>(m, "Plan")
      .def(
          "__init__",
          [](Plan* self, int64_t max_tokens, int64_t max_logit_rows, int64_t vocab,
             int64_t num_positions,
             const std::vector<std::pair<std::vector<double>, double>>& tables,
             std::shared_ptr<Threads> threads, const std::string& isa) {
            std::vector<RotaryTable> rotary;
            for (const auto& [frequencies, factor] : tables)
              rotary.push_back({frequencies, factor});
            new (self) Plan(max_tokens, max_logit_rows, vocab, num_positions, std::move(rotary),
                            std::move(threads), choose_kernels(isa.c_str()));
          },
          "max_tokens"_a, "max_logit_rows"_a, "vocab"_a, "num_positions"_a, "tables"_a, "threads"_a,
          "isa"_a = "")
      .def_prop_ro("isa", &Plan::isa)
      .def_prop_ro("threads", &Plan::threads)
      .def_prop_ro("scratch_bytes", &Plan::scratch_bytes)
      .def("add_buffer", &Plan::add_buffer, "offset"_a, "width"_a)
      .def(
          "embed",
          [](Plan& p, WeightRef table, int out, float scale) {
            p.add_op(EmbedOp{table, scale, out});
          },
          "table"_a, "out"_a, "scale"_a = 1.0f)
      .def(
          "norm",
          [](Plan& p, int x, const In<float, 1>& gain, float eps, int out, int num_heads) {
            p.add_op(NormOp{x, num_heads, padded(gain), eps, out});
          },
          "x"_a, "gain"_a, "eps"_a, "out"_a, "num_heads"_a = 1)
      .def(
          "linear",
          [](Plan& p, int x, std::vector<WeightRef> weights,
             const std::vector<std::optional<In<float, 1>>>& biases, std::vector<int> outs,
             int residual, const std::optional<In<float, 1>>& gain, float eps,
             const std::string& gated, bool logits, float cap) {
            std::vector<Vector> bias;
            for (const auto& b : biases) bias.push_back(padded(b));
            p.add_op(LinearOp{x, std::move(weights), std::move(bias), std::move(outs), residual,
                              padded(gain), eps, activation_of(gated), logits, cap});
          },
          "x"_a, "weights"_a, "biases"_a, "outs"_a, "residual"_a = -1, "gain"_a.none() = nb::none(),
          "eps"_a = 0.0f, "gated"_a = "", "logits"_a = false, "cap"_a = 0.0f)
      .def(
          "rope",
          [](Plan& p, int x, int num_heads, int out, int table) {
            p.add_op(RopeOp{x, num_heads, table, out});
          },
          "x"_a, "num_heads"_a, "out"_a, "table"_a = 0)
      .def(
          "store",
          [](Plan& p, int layer, int k, int v, bool rotate, int table) {
            p.add_op(StoreOp{layer, k, v, rotate, table});
          },
          "layer"_a, "k"_a, "v"_a, "rotate"_a = false, "table"_a = 0)
      .def(
          "attend",
          [](Plan& p, int layer, int q, int out, int num_heads, int num_kv_heads, float scale,
             float cap, int64_t window, bool rotate, int table) {
            p.add_op(AttendOp{layer, q, out, num_heads, num_kv_heads, scale, cap, window, rotate,
                              table});
          },
          "layer"_a, "q"_a, "out"_a, "num_heads"_a, "num_kv_heads"_a, "scale"_a, "cap"_a = 0.0f,
          "window"_a = 0, "rotate"_a = false, "table"_a = 0)
      .def(
          "route",
          [](Plan& p, int logits, int out, int top_k, bool renormalise, int shared) {
            p.add_op(RouteOp{logits, shared, out, top_k, renormalise});
          },
          "logits"_a, "out"_a, "top_k"_a, "renormalise"_a, "shared"_a = -1)
      .def(
          "experts",
          [](Plan& p, int x, int weights, int out, const std::vector<WeightRef>& gates,
             const std::vector<WeightRef>& ups, const std::vector<WeightRef>& downs,
             const std::string& kind) {
            require(ups.size() == gates.size() && downs.size() == gates.size(),
                    "experts: one gate, up and down each");
            std::vector<Expert> experts;
            for (size_t e = 0; e < gates.size(); ++e)
              experts.push_back({{gates[e], ups[e]}, {downs[e]}});
            p.add_op(ExpertsOp{x, weights, out, std::move(experts), activation_of(kind)});
          },
          "x"_a, "weights"_a, "out"_a, "gates"_a, "ups"_a, "downs"_a, "kind"_a)
      .def(
          "activation",
          [](Plan& p, int gate, int up, int out, const std::string& kind) {
            p.add_op(ActivationOp{gate, up, out, activation_of(kind)});
          },
          "gate"_a, "up"_a, "out"_a, "kind"_a)
      .def(
          "add", [](Plan& p, int x, int y, int out) { p.add_op(AddOp{x, y, out}); }, "x"_a, "y"_a,
          "out"_a)
      .def("receive", &Plan::receive, "out"_a)
      .def("send", &Plan::send, "x"_a)
      .def("finish", &Plan::finish)
      .def("bind_store", &bind_store, "layers"_a, "tiles"_a)
      .def("run", &run, "token_ids"_a, "positions"_a, "row_starts"_a, "block_starts"_a,
           "block_size"_a, "logit_rows"_a, "trace"_a = false, "adapters"_a.none() = nb::none(),
           "received"_a.none() = nb::none(), "sent"_a.none() = nb::none())
      .def("add_adapter", &Plan::add_adapter, "parts"_a)
      .def_prop_ro("hidden_width", &Plan::hidden_width)
      .def("logits", &logits, "rows"_a)
      .def("hidden", &hidden, "rows"_a, "out"_a);

  bind_sampler(m);
  bind_limits(m);
  bind_shards(m);
}
