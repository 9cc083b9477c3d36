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

int64_t outputs_of(const LinearOp& op) {
  int64_t sum = 0;
  for (const WeightRef& w : op.weights) sum += w->n;
  return sum;
}

}  // namespace

// The operator of a part that fits.
LinearOp& Plan::adapted(const AdapterPart& part) {
  const auto& [op, which, a, b] = part;
  require(op >= 0 && op < static_cast<int64_t>(ops_.size()), "adapter: no such operator");
  auto* linear = std::get_if<LinearOp>(&ops_[static_cast<size_t>(op)]);
  require(linear && which >= 0 && which < static_cast<int64_t>(linear->weights.size()),
          "adapter: no such weight");
  const PackedWeight& weight = *linear->weights[static_cast<size_t>(which)];
  require(a && b && a->kind == Kind::float32 && b->kind == Kind::float32, "adapter: float32 only");
  require(a->k == weight.k && b->n == weight.n && b->k == a->n, "adapter: a matrix does not fit");
  return *linear;
}

int Plan::add_adapter(const std::vector<AdapterPart>& parts) {
  require(finished_, "the plan is not finished");
  for (const AdapterPart& part : parts) adapted(part);
  at_least(adapter_of_, max_tokens_);
  at_least(adapter_rows_, max_tokens_);
  for (const AdapterPart& part : parts) {
    const LinearOp& op = adapted(part);
    const int64_t rows = op.logits ? max_logit_rows_ : max_tokens_;
    const auto num_weights = static_cast<int64_t>(op.weights.size());
    at_least(low_rank_, rows * std::get<2>(part)->n + kSlack);
    at_least(deltas_, rows * outputs_of(op) + kSlack);
    at_least(delta_rows_, rows * num_weights);
    at_least(prepared_f_, rows * stride_of(op.weights) + kSlack);
  }
  for (const AdapterPart& part : parts) {
    const auto& [unused, which, a, b] = part;
    LinearOp& op = adapted(part);
    op.adapters.resize(static_cast<size_t>(num_adapters_) + 1);
    op.adapters.back().resize(op.weights.size());
    op.adapters.back()[static_cast<size_t>(which)] = {a, b};
  }
  return num_adapters_++;
}

// Makes the deltas of all weights of one operator over `rows` rows: those of `row_of`, or all.
void Plan::adapt(const LinearOp& s, const int32_t* row_of, int64_t rows) {
  const auto num_weights = static_cast<int64_t>(s.weights.size());
  std::fill_n(delta_rows_.begin(), rows * num_weights, -1);
  int32_t first = 0;  // of the adapter's rows among those with any
  for (size_t number = 0; number < s.adapters.size(); ++number) {
    const std::vector<LowRank>& factors = s.adapters[number];
    if (factors.empty()) continue;
    int32_t count = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t row = row_of ? row_of[r] : static_cast<int32_t>(r);
      if (adapter_of_[static_cast<size_t>(row)] != static_cast<int32_t>(number)) continue;
      for (int64_t i = 0; i < num_weights; ++i)
        if (factors[static_cast<size_t>(i)].a)
          delta_rows_[static_cast<size_t>(i * rows + r)] = first + count;
      adapter_rows_[static_cast<size_t>(count++)] = row;
    }
    if (count == 0) continue;
    PrepareCall call = reading(s, adapter_rows_.data());
    call.wanted = {false, false, true};
    const Prepared x = prepare(call, count);
    float* out = deltas_.data();
    for (int64_t i = 0; i < num_weights; ++i) {
      const LowRank& one = factors[static_cast<size_t>(i)];
      const int64_t n = s.weights[static_cast<size_t>(i)]->n;
      if (one.a) {
        const int64_t rank = one.a->n;
        // A rank has few panels; so the threads share the rows.
        threads_->run(count, kRowsTogether, [&](int64_t begin, int64_t end, int) {
          Prepared part = x;
          part.f += begin * x.stride;
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

// Of one weight of the operator that `adapt` was called for last.
Delta Plan::delta(const LinearOp& s, size_t weight, int64_t rows) const {
  if (!adapted_ || s.adapters.empty()) return {};
  int64_t before = 0;
  for (size_t i = 0; i < weight; ++i) before += s.weights[i]->n;
  return {deltas_.data() + rows * before, delta_rows_.data() + static_cast<int64_t>(weight) * rows};
}

}  // namespace firsthand
