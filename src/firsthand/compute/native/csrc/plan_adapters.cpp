// Adapters: what a few of a step's rows add to the linear operators, each its own product.
//
// Owns: which row has which adapter, and the memory of what is added.
// May not know: names, files, where a product is added (linear.hpp).
// Read next: plan_run.cpp.
//
// For the rows of one adapter after another: h = x · aᵀ and delta = h · bᵀ, by the float32 kernel of
// every linear layer; so an element's order of sums depends on K and the rank alone, and a row's
// bits neither on the other rows nor on their adapters.
#include <algorithm>
#include <stdexcept>

#include "plan.hpp"

namespace firsthand {

namespace {

constexpr int64_t kSlack = 64;
constexpr int64_t kRowsTogether = 32;

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class V>
void at_least(V& memory, int64_t count) {
  if (static_cast<int64_t>(memory.size()) < count) memory.resize(static_cast<size_t>(count));
}

int64_t outputs_of(const std::vector<WeightRef>& weights) {
  int64_t sum = 0;
  for (const WeightRef& w : weights) sum += w->n;
  return sum;
}

}  // namespace

// Where a part belongs, which fits. Weights of experts count as gate, up and down of each in turn.
Plan::Place Plan::place_of(const AdapterPart& part) {
  const auto& [at, which, a, b] = part;
  require(at >= 0 && at < static_cast<int64_t>(ops_.size()) && which >= 0,
          "adapter: no such operator");
  Op& op = ops_[static_cast<size_t>(at)];
  auto place = Place{nullptr, nullptr, static_cast<size_t>(which), max_tokens_};
  if (auto* linear = std::get_if<LinearOp>(&op)) {
    place.weights = &linear->weights;
    place.adapters = &linear->adapters;
    if (linear->logits) place.max_rows = max_logit_rows_;
  } else if (auto* experts = std::get_if<ExpertsOp>(&op);
             experts && place.which / 3 < experts->experts.size()) {
    Expert& expert = experts->experts[place.which / 3];
    const bool is_down = place.which % 3 == 2;
    place.weights = is_down ? &expert.down : &expert.gate_up;
    place.adapters = is_down ? &expert.down_adapters : &expert.gate_up_adapters;
    place.which = is_down ? 0 : place.which % 3;
  }
  require(place.weights && place.which < place.weights->size(), "adapter: no such weight");
  const PackedWeight& weight = *(*place.weights)[place.which];
  require(a && b && a->kind == Kind::float32 && b->kind == Kind::float32, "adapter: float32 only");
  require(a->k == weight.k && b->n == weight.n && b->k == a->n, "adapter: a matrix does not fit");
  return place;
}

int Plan::add_adapter(const std::vector<AdapterPart>& parts) {
  require(finished_, "the plan is not finished");
  for (const AdapterPart& part : parts) place_of(part);
  at_least(adapter_of_, max_tokens_);
  at_least(adapter_rows_, max_tokens_);
  for (const AdapterPart& part : parts) {
    const Place place = place_of(part);
    const auto num_weights = static_cast<int64_t>(place.weights->size());
    at_least(low_rank_, place.max_rows * std::get<2>(part)->n + kSlack);
    at_least(deltas_, place.max_rows * outputs_of(*place.weights) + kSlack);
    at_least(delta_rows_, place.max_rows * num_weights);
    at_least(prepared_f_, place.max_rows * stride_of(*place.weights) + kSlack);
  }
  for (const AdapterPart& part : parts) {
    const Place place = place_of(part);
    place.adapters->resize(static_cast<size_t>(num_adapters_) + 1);
    place.adapters->back().resize(place.weights->size());
    place.adapters->back()[place.which] = {std::get<2>(part), std::get<3>(part)};
  }
  return num_adapters_++;
}

// Makes the deltas of all of these weights over `rows` rows, read as `x` says. Row r is that of row
// `owners[r]` of the step, or r itself.
void Plan::adapt(const std::vector<WeightRef>& weights, const Adapters& adapters, PrepareCall x,
                 const int32_t* owners, int64_t rows) {
  if (!adapted_ || adapters.empty()) return;
  const auto num_weights = static_cast<int64_t>(weights.size());
  std::fill_n(delta_rows_.begin(), rows * num_weights, -1);
  const int32_t* row_of = x.row_of;
  x.row_of = adapter_rows_.data();
  x.wanted = {false, false, true};
  int32_t first = 0;  // of the adapter's rows among those with any
  for (size_t number = 0; number < adapters.size(); ++number) {
    const std::vector<LowRank>& factors = adapters[number];
    if (factors.empty()) continue;
    int32_t count = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t owner = owners ? owners[r] : r;
      if (adapter_of_[static_cast<size_t>(owner)] != static_cast<int32_t>(number)) continue;
      for (int64_t i = 0; i < num_weights; ++i)
        if (factors[static_cast<size_t>(i)].a)
          delta_rows_[static_cast<size_t>(i * rows + r)] = first + count;
      adapter_rows_[static_cast<size_t>(count++)] = row_of ? row_of[r] : static_cast<int32_t>(r);
    }
    if (count == 0) continue;
    const Prepared prepared = prepare(x, count);
    float* out = deltas_.data();
    for (int64_t i = 0; i < num_weights; ++i) {
      const LowRank& one = factors[static_cast<size_t>(i)];
      const int64_t n = weights[static_cast<size_t>(i)]->n;
      if (one.a) {
        const int64_t rank = one.a->n;
        // A rank has few panels; so the threads share the rows.
        threads_->run(count, kRowsTogether, [&](int64_t begin, int64_t end, int) {
          Prepared part = prepared;
          part.f += begin * prepared.stride;
          kernels_.linear({one.a.get(), nullptr, nullptr, nullptr, nullptr,
                           low_rank_.data() + begin * rank, Activation::none, part, end - begin},
                          0, one.a->num_panels());
        });
        Prepared h{};
        h.f = low_rank_.data();
        h.stride = rank;
        multiply({one.b.get(), nullptr, nullptr, nullptr, nullptr, out + first * n,
                  Activation::none, h, count});
      }
      out += rows * n;
    }
    first += count;
  }
}

// Of one of the weights that `adapt` was called for last.
Delta Plan::delta(const std::vector<WeightRef>& weights, const Adapters& adapters, size_t which,
                  int64_t rows) const {
  if (!adapted_ || adapters.empty()) return {};
  int64_t before = 0;
  for (size_t i = 0; i < which; ++i) before += weights[i]->n;
  return {deltas_.data() + rows * before, delta_rows_.data() + static_cast<int64_t>(which) * rows};
}

}  // namespace firsthand
