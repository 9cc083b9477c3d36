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
#include <functional>
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

  // (begin, end, thread): items begin … end − 1, on thread 0 (the caller) … count − 1.
  using Body = std::function<void(int64_t, int64_t, int)>;

  // Calls the body until all of 0 … items − 1 is done; `grain` items at a time. The body must not
  // throw. Which thread takes which chunk is not fixed, and no result may depend on it; the thread's
  // number is for its own scratch memory.
  void run(int64_t items, int64_t grain, const Body& body);

 private:
  void work(int thread);
  void take_chunks(int thread);

  std::vector<std::thread> workers_;
  // Written by the caller while the call is closed and no worker is inside; read by workers inside.
  const Body* body_ = nullptr;
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
