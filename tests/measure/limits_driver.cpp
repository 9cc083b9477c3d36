// Runs every bare loop of every instruction set that this machine has, and both ways to read.
#include <cstdio>

#include "limits.hpp"

int main() {
  firsthand::Threads threads(2);
  for (const firsthand::LimitLoops* table : firsthand::runnable_limit_loops())
    for (int i = 0; i < table->count; ++i)
      std::printf("%s %s: %.6f\n", table->isa, table->loops[i].name,
                  firsthand::loop_rate(table->loops[i], threads, 1.0));
  std::printf("read: %.6f\n", firsthand::read_rate(1 << 20, threads, 1.0));
}
