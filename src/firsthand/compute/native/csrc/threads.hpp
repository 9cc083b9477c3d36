// A pool of threads that share the items of one call after another.
//
// Owns: the threads, and how work is handed out: in small chunks from one counter, so that a
// thread that the machine has taken away delays little. A waiting thread spins briefly, then
// sleeps. The calling thread works too.
// May not know: what an item is.
// Read next: plan.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace firsthand {

class Threads {
 public:
  explicit Threads(int count);  // 1 … 256, the caller included
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(begin, end, thread) for items begin … end − 1, on thread 0 (the caller) … count − 1,
  // until all of 0 … items − 1 is done; `grain` items at a time. f must not throw. Which thread
  // takes which chunk is not fixed, and no result may depend on it; the thread's number is for its
  // own scratch memory. Nothing is allocated.
  template <class F>
  void run(int64_t items, int64_t grain, const F& f) {
    run_body(items, grain,
             {[](const void* self, int64_t begin, int64_t end, int thread) {
                (*static_cast<const F*>(self))(begin, end, thread);
              },
              &f});
  }

 private:
  // A callable without its type: what to call, and with which state.
  struct Body {
    void (*call)(const void* self, int64_t begin, int64_t end, int thread);
    const void* self;
  };

  void run_body(int64_t items, int64_t grain, Body body);
  void work(int thread);
  void take_chunks(int thread);

  std::vector<std::thread> workers_;
  // Written by the caller while the call is closed and no worker is inside; read by workers inside.
  Body body_{nullptr, nullptr};
  int64_t items_ = 0, grain_ = 1;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> open_{false};
  // Workers that may be reading the call. A worker enters first and looks whether the call is open
  // second; the caller closes first and looks whether anyone is inside second. So either the worker
  // sees it closed, or the caller waits for it: a worker that the machine has taken away before it
  // entered delays nobody.
  std::atomic<int32_t> inside_{0};
  std::atomic<uint32_t> generation_{0};  // what a sleeping worker waits on
  std::atomic<bool> stopping_{false};
};

// Denormals count as zero while this lives, in this thread: the same rule everywhere.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace firsthand
