// Python's view of the sampler.
//
// Owns: the conversion of arguments and results. `sample_rows` and `token_logprob` work without
// the interpreter lock; the other functions are there for tests, and for looking inside.
// May not know: arithmetic.
// Read next: sampler.hpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>
#include <stdexcept>

#include "sampler.hpp"
#include "sampler_math.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace sampler = firsthand::sampler;

using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_vocab_size(size_t size) {
  if (size == 0 || size > static_cast<size_t>(sampler::kMaxVocab)) {
    throw std::invalid_argument("logits must hold at least 1 and at most 1048576 values");
  }
}

// A Python integer of any size; one that does not fit becomes an id that no vocabulary holds.
int64_t token_id(nb::handle object) {
  int overflow = 0;
  const long long id = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (id == -1 && PyErr_Occurred()) throw nb::python_error();
  if (overflow > 0) return std::numeric_limits<int64_t>::max();
  return overflow < 0 ? std::numeric_limits<int64_t>::min() : id;
}

std::span<const float> checked(const Row& row) {
  check_vocab_size(row.shape(0));
  return {row.data(), row.size()};
}

// `numbers` is (temperature, top_k, top_p, min_p, repetition, presence, frequency penalty).
sampler::Settings settings(const nb::tuple& numbers, const nb::tuple& logit_bias,
                           int64_t num_logprobs) {
  sampler::Settings taken{
      .temperature = nb::cast<double>(numbers[0]),
      .top_k = nb::cast<int64_t>(numbers[1]),
      .top_p = nb::cast<double>(numbers[2]),
      .min_p = nb::cast<double>(numbers[3]),
      .repetition_penalty = nb::cast<double>(numbers[4]),
      .presence_penalty = nb::cast<double>(numbers[5]),
      .frequency_penalty = nb::cast<double>(numbers[6]),
      .logit_bias = {},
      .num_logprobs = num_logprobs,
  };
  taken.logit_bias.reserve(logit_bias.size());
  for (nb::handle entry : logit_bias) {
    taken.logit_bias.push_back({token_id(entry[0]), nb::cast<double>(entry[1])});
  }
  return taken;
}

std::vector<int64_t> token_ids(nb::handle tuple) {
  std::vector<int64_t> ids;
  ids.reserve(nb::len(tuple));
  for (nb::handle id : tuple) ids.push_back(token_id(id));
  return ids;
}

// False: it does not fit into 64 bits.
bool take_uint64(nb::handle object, uint64_t& value) {
  value = PyLong_AsUnsignedLongLong(object.ptr());
  if (value != std::numeric_limits<uint64_t>::max() || !PyErr_Occurred()) return true;
  if (!PyErr_ExceptionMatches(PyExc_OverflowError)) throw nb::python_error();
  PyErr_Clear();
  return false;
}

std::vector<sampler::Draw> draws_of(const nb::list& settings, const nb::list& seeds,
                                    const nb::list& positions, const nb::dict& histories) {
  std::vector<sampler::Draw> draws(settings.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    sampler::Draw& draw = draws[i];
    draw.settings = nb::cast<const sampler::Settings*>(settings[i]);
    draw.in_range = take_uint64(seeds[i], draw.seed);
    draw.in_range &= take_uint64(positions[i], draw.position);
  }
  for (auto [row, history] : histories) {
    sampler::Draw& draw = draws.at(nb::cast<size_t>(row));
    draw.history = token_ids(history[0]);
    draw.num_prompt_tokens = nb::cast<int64_t>(history[1]);
  }
  return draws;
}

// Row i of `masks` is that of row `masked_rows[i]` of the logits.
void take_masks(const std::optional<Masks>& masks, const std::vector<int64_t>& masked_rows,
                std::vector<sampler::Draw>& draws) {
  if ((masks ? masks->shape(0) : 0) != masked_rows.size()) {
    throw std::invalid_argument("each mask needs the row that it is for");
  }
  for (size_t i = 0; i < masked_rows.size(); ++i) {
    const size_t num_words = masks->shape(1);
    draws.at(static_cast<size_t>(masked_rows[i])).mask = {masks->data() + i * num_words, num_words};
  }
}

nb::object report_of(const sampler::Outcome& outcome, const sampler::Settings& settings) {
  if (!outcome.error.empty()) return nb::make_tuple(nb::none(), nb::tuple(), outcome.error);
  if (settings.num_logprobs < 0) return nb::object();
  nb::list top;
  for (const sampler::TokenLogprob& entry : outcome.top_logprobs) {
    top.append(nb::make_tuple(entry.token_id, entry.logprob));
  }
  return nb::make_tuple(outcome.logprob, nb::tuple(top), nb::none());
}

struct Memory {
  std::vector<sampler::Scratch> scratch;
};

// The token of each row into `token_ids`; what more there is to say, by row. Settings, seeds and
// positions have an entry per row; `histories` maps a row to (token ids, number of the prompt's).
// `masks` are of the rows in `masked_rows`.
nb::dict sample_rows(const Rows& logits, const nb::list& settings, const nb::list& seeds,
                     const nb::list& positions, const nb::dict& histories, const Ids& token_ids,
                     Memory& memory, firsthand::Threads* threads, const std::string& isa,
                     const std::optional<Masks>& masks, const std::vector<int64_t>& masked_rows) {
  check_vocab_size(logits.shape(1));
  const size_t size = logits.shape(0);
  if (settings.size() != size || seeds.size() != size || positions.size() != size ||
      token_ids.shape(0) != size) {
    throw std::invalid_argument("each row of logits needs settings, a seed, a position, an id");
  }
  std::vector<sampler::Draw> draws = draws_of(settings, seeds, positions, histories);
  take_masks(masks, masked_rows, draws);
  const sampler::RowKernels& kernels = sampler::choose_row_kernels(isa.c_str());
  std::vector<sampler::Outcome> outcomes;
  {
    const nb::gil_scoped_release unlocked;
    outcomes = sampler::sample_rows(logits.data(), static_cast<int64_t>(logits.shape(1)), draws,
                                    kernels, threads, memory.scratch);
  }
  nb::dict reports;
  for (size_t i = 0; i < size; ++i) {
    token_ids.data()[i] = static_cast<int32_t>(outcomes[i].token_id);
    const nb::object report = report_of(outcomes[i], *draws[i].settings);
    if (report.is_valid()) reports[nb::int_(i)] = report;
  }
  return reports;
}

double token_logprob(const Row& logits, int64_t token_id) {
  const std::span<const float> row = checked(logits);
  const sampler::RowKernels& kernels = sampler::choose_row_kernels("");
  std::string error;
  double logprob = 0.0;
  {
    const nb::gil_scoped_release unlocked;
    logprob = sampler::token_logprob(row, token_id, kernels, error);
  }
  if (!error.empty()) throw std::invalid_argument(error);
  return logprob;
}

nb::object row_masses(const Row& logits, const nb::tuple& numbers, const nb::tuple& logit_bias,
                      const nb::tuple& history, int64_t num_prompt_tokens, const std::string& isa) {
  const std::span<const float> row = checked(logits);
  const sampler::Settings taken = settings(numbers, logit_bias, -1);
  const sampler::Draw draw{
      .settings = &taken, .history = token_ids(history), .num_prompt_tokens = num_prompt_tokens};
  std::string error;
  const auto masses =
      sampler::row_masses(row, draw, sampler::choose_row_kernels(isa.c_str()), error);
  if (!error.empty()) throw std::invalid_argument(error);
  return nb::cast(masses);
}

int64_t drawn(const std::vector<uint64_t>& masses, uint64_t bits) {
  return sampler::drawn(masses, bits);
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<sampler::Settings>(m, "SampleSettings")
      .def(
          "__init__",
          [](sampler::Settings* self, const nb::tuple& numbers, const nb::tuple& logit_bias,
             int64_t num_logprobs) {
            new (self) sampler::Settings(settings(numbers, logit_bias, num_logprobs));
          },
          "numbers"_a, "logit_bias"_a, "num_logprobs"_a);
  nb::class_<Memory>(m, "SampleMemory").def(nb::init<>());
  m.def("sample_rows", &sample_rows, "logits"_a, "settings"_a, "seeds"_a, "positions"_a,
        "histories"_a, "token_ids"_a, "memory"_a, "threads"_a.none() = nb::none(), "isa"_a = "",
        "masks"_a.none() = nb::none(), "masked_rows"_a = nb::list());
  m.def("token_logprob", &token_logprob, "logits"_a, "token_id"_a);
  m.def("row_masses", &row_masses, "logits"_a, "numbers"_a, "logit_bias"_a, "history"_a,
        "num_prompt_tokens"_a, "isa"_a = "");
  m.def("drawn", &drawn, "masses"_a, "bits"_a);
  m.def("philox4x32", &sampler::philox4x32, "counter"_a, "key"_a);
  m.def("random_bits", &sampler::random_bits, "seed"_a, "position"_a);
  m.def("exp_nonpositive", &sampler::exp_nonpositive, "x"_a);
  m.def("natural_log", &sampler::natural_log, "x"_a);
}
