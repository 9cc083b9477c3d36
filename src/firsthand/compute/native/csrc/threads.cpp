// The pool: a generation counter wakes the workers, a count of those inside ends the call.
#include "threads.hpp"

#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace firsthand {

namespace {

constexpr int kSpins = 4000;  // some tens of microseconds

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

FlushDenormals::FlushDenormals() {
#if defined(__x86_64__)
  saved_ = _mm_getcsr();
  _mm_setcsr(static_cast<unsigned>(saved_) | 0x8040u);  // flush to zero, denormals are zero
#elif defined(__aarch64__)
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" ::"r"(saved_ | (uint64_t{1} << 24)));
#else
  saved_ = 0;
#endif
}

FlushDenormals::~FlushDenormals() {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(saved_));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(saved_));
#endif
}

Threads::Threads(int count) {
  if (count < 1 || count > 256) throw std::invalid_argument("threads: at least 1, at most 256");
  for (int i = 1; i < count; ++i) workers_.emplace_back([this, i] { work(i); });
}

Threads::~Threads() {
  stopping_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Threads::take_chunks(int thread) {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= items_) return;
    body_.call(body_.self, begin, begin + grain_ < items_ ? begin + grain_ : items_, thread);
  }
}

void Threads::work(int thread) {
  const FlushDenormals flush;
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin)
      pause();
    generation_.wait(seen, std::memory_order_acquire);
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    inside_.fetch_add(1);
    if (open_.load()) take_chunks(thread);
    if (inside_.fetch_sub(1) == 1) inside_.notify_one();
  }
}

void Threads::run_body(int64_t items, int64_t grain, Body body) {
  if (items <= 0) return;
  if (workers_.empty() || items <= grain) {
    body.call(body.self, 0, items, 0);
    return;
  }
  body_ = body;
  items_ = items;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  open_.store(true);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take_chunks(0);
  open_.store(false);
  for (int spin = 0; spin < kSpins && inside_.load() != 0; ++spin) pause();
  for (int32_t left = inside_.load(); left != 0; left = inside_.load()) inside_.wait(left);
}

}  // namespace firsthand
