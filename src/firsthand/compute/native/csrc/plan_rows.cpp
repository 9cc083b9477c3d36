// Rows of the last run, asked for afterwards: their logits, and what the head made them of.
//
// Owns: nothing; the values still lie in the plan's scratch, until the next run.
// May not know: why a row is wanted.
// Read next: plan_run.cpp.
#include <algorithm>
#include <stdexcept>

#include "plan.hpp"

namespace firsthand {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace

const LinearOp& Plan::head() const {
  require(head_ > 0, "the plan has no head");
  return std::get<LinearOp>(ops_[head_]);
}

void Plan::check_rows(const int32_t* rows, int64_t count, int64_t most) const {
  require(count >= 0 && count <= most, "rows: too many");
  for (int64_t i = 0; i < count; ++i)
    require(rows[i] >= 0 && rows[i] < last_tokens_, "rows: not of the last run");
}

const float* Plan::logits(const int32_t* rows, int64_t count) {
  check_rows(rows, count, max_logit_rows_);
  const FlushDenormals flush;
  Batch batch{};
  batch.logit_rows = rows;
  batch.num_logit_rows = count;
  replay(head_, batch, nullptr);
  return logits_.data();
}

void Plan::hidden(const int32_t* rows, int64_t count, float* out) {
  check_rows(rows, count, max_tokens_);
  const FlushDenormals flush;
  PrepareCall call = reading(head(), rows);
  call.wanted = {false, false, true};
  const Prepared prepared = prepare(call, count);
  const int64_t columns = hidden_width();
  for (int64_t r = 0; r < count; ++r)
    std::copy_n(prepared.f + r * prepared.stride, columns, out + r * columns);
}

}  // namespace firsthand
