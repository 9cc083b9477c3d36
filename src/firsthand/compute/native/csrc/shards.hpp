// Weights of which only a part is in memory: shards of a mapped file, read while the operators
// before them compute, and given back behind them.
//
// Owns: which pages of the file are asked for and given back, and when; the thread that reads.
// May not know: what an operator does, how the shards were chosen.
// Read next: shards.cpp; ../shards.py, which chooses; plan_run.cpp, which calls.
//
// No address ever changes: a page that is not there is read again when it is touched. So nothing
// here decides a value, only when the disk is waited for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace firsthand {

struct FileRange {
  int64_t offset, num_bytes;
};

// Operators first … last. `ahead` is read before they begin, `behind` given back after them.
struct Shard {
  int64_t first, last;
  std::vector<FileRange> ahead, behind;
};

class Shards {
 public:
  // `map` is the whole file of `size` bytes, mapped shared, and outlives this; `file` is a
  // descriptor of it, which is copied. Shards are in the order of their operators, and do not
  // overlap. Nothing of the file is resident afterwards. Throws std::invalid_argument.
  Shards(const uint8_t* map, int64_t size, int file, std::vector<Shard> shards);
  ~Shards();
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  // Around each operator of a step, on one thread. While one shard computes the next one that is
  // read ahead is being read, after the last one the first: two are there at most.
  void before(int64_t op);
  void after(int64_t op);

  int64_t read_bytes() const { return read_bytes_; }  // asked for ahead, so far
  double wait_ms() const { return wait_ms_; }         // that operators waited for it

 private:
  int next_of(int shard) const;
  void ask(int shard);
  void wait_for(int shard);
  void work();
  void read(const Shard& shard);
  void drop(const FileRange& range) const;

  const uint8_t* map_;
  int64_t size_;
  int file_;
  std::vector<Shard> shards_;
  size_t at_ = 0;  // the shard whose operators come next
  int asked_ = -1;
  int64_t read_bytes_ = 0;
  double wait_ms_ = 0.0;

  std::mutex mutex_;
  std::condition_variable changed_;
  int wanted_ = -1, ready_ = -1;  // under the mutex
  bool stopping_ = false;
  std::thread reader_;
};

}  // namespace firsthand
