// Python's view of the sampler.
//
// Owns: the conversion of arguments and results. `sample_row` and `token_logprob` work without
// the interpreter lock; the other functions are there for tests, and for looking inside.
// May not know: arithmetic.
// Read next: sampler.hpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <stdexcept>

#include "sampler.hpp"
#include "sampler_math.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace sampler = firsthand::sampler;

using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A Python integer of any size; one that does not fit becomes an id that no vocabulary holds.
int64_t token_id(nb::handle object) {
  int overflow = 0;
  const long long id = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (id == -1 && PyErr_Occurred()) throw nb::python_error();
  if (overflow > 0) return std::numeric_limits<int64_t>::max();
  return overflow < 0 ? std::numeric_limits<int64_t>::min() : id;
}

struct Arguments {
  std::vector<sampler::Bias> logit_bias;
  std::vector<int64_t> history;
  sampler::Settings settings;
};

std::span<const float> checked(const Row& row) {
  if (row.size() == 0 || row.size() > static_cast<size_t>(sampler::kMaxVocab)) {
    throw std::invalid_argument("logits must hold at least 1 and at most 1048576 values");
  }
  return {row.data(), row.size()};
}

// `settings` is (temperature, top_k, top_p, min_p, repetition, presence, frequency penalty).
Arguments arguments(const nb::tuple& settings, const nb::tuple& logit_bias,
                    const nb::tuple& history, int64_t num_prompt_tokens) {
  Arguments taken;
  taken.logit_bias.reserve(logit_bias.size());
  for (nb::handle entry : logit_bias) {
    taken.logit_bias.push_back({token_id(entry[0]), nb::cast<double>(entry[1])});
  }
  taken.history.reserve(history.size());
  for (nb::handle id : history) taken.history.push_back(token_id(id));
  taken.settings = {
      .temperature = nb::cast<double>(settings[0]),
      .top_k = nb::cast<int64_t>(settings[1]),
      .top_p = nb::cast<double>(settings[2]),
      .min_p = nb::cast<double>(settings[3]),
      .repetition_penalty = nb::cast<double>(settings[4]),
      .presence_penalty = nb::cast<double>(settings[5]),
      .frequency_penalty = nb::cast<double>(settings[6]),
      .logit_bias = taken.logit_bias,
      .history = taken.history,
      .num_prompt_tokens = num_prompt_tokens,
  };
  return taken;  // moved, never copied: the spans stay those of its vectors
}

nb::object sample_row(const Row& logits, const nb::tuple& settings, const nb::tuple& logit_bias,
                      const nb::tuple& history, int64_t num_prompt_tokens, uint64_t seed,
                      uint64_t position, int64_t num_logprobs) {
  const std::span<const float> row = checked(logits);
  const Arguments taken = arguments(settings, logit_bias, history, num_prompt_tokens);
  sampler::Outcome outcome;
  {
    const nb::gil_scoped_release unlocked;
    outcome = sampler::sample_row(row, taken.settings, seed, position, num_logprobs);
  }
  if (!outcome.error.empty()) return nb::make_tuple(-1, nb::none(), nb::tuple(), outcome.error);
  if (num_logprobs < 0) {
    return nb::make_tuple(outcome.token_id, nb::none(), nb::tuple(), nb::none());
  }
  nb::list top;
  for (const sampler::TokenLogprob& entry : outcome.top_logprobs) {
    top.append(nb::make_tuple(entry.token_id, entry.logprob));
  }
  return nb::make_tuple(outcome.token_id, outcome.logprob, nb::tuple(top), nb::none());
}

double token_logprob(const Row& logits, int64_t token_id) {
  const std::span<const float> row = checked(logits);
  std::string error;
  double logprob = 0.0;
  {
    const nb::gil_scoped_release unlocked;
    logprob = sampler::token_logprob(row, token_id, error);
  }
  if (!error.empty()) throw std::invalid_argument(error);
  return logprob;
}

nb::object row_masses(const Row& logits, const nb::tuple& settings, const nb::tuple& logit_bias,
                      const nb::tuple& history, int64_t num_prompt_tokens) {
  const std::span<const float> row = checked(logits);
  const Arguments taken = arguments(settings, logit_bias, history, num_prompt_tokens);
  std::string error;
  const std::vector<uint64_t> masses = sampler::row_masses(row, taken.settings, error);
  if (!error.empty()) throw std::invalid_argument(error);
  return nb::cast(masses);
}

int64_t drawn(const std::vector<uint64_t>& masses, uint64_t bits) {
  return sampler::drawn(masses, bits);
}

}  // namespace

void bind_sampler(nb::module_& m) {
  m.def("sample_row", &sample_row, "logits"_a, "settings"_a, "logit_bias"_a, "history"_a,
        "num_prompt_tokens"_a, "seed"_a, "position"_a, "num_logprobs"_a);
  m.def("token_logprob", &token_logprob, "logits"_a, "token_id"_a);
  m.def("row_masses", &row_masses, "logits"_a, "settings"_a, "logit_bias"_a, "history"_a,
        "num_prompt_tokens"_a);
  m.def("drawn", &drawn, "masses"_a, "bits"_a);
  m.def("philox4x32", &sampler::philox4x32, "counter"_a, "key"_a);
  m.def("random_bits", &sampler::random_bits, "seed"_a, "position"_a);
  m.def("exp_nonpositive", &sampler::exp_nonpositive, "x"_a);
  m.def("natural_log", &sampler::natural_log, "x"_a);
}
