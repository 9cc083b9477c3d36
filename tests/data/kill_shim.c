// Preloaded into a test's process: the k-th call that changes a file under one folder is the last
// thing it does (of a write, half is done), or fails with an error of choice.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long calls;
static long last = -1;
static int fault, armed;
static char folder[4096];

void shim_arm(const char *where, long at, int error) {
  snprintf(folder, sizeof folder, "%s", where);
  atomic_store(&calls, 0);
  last = at, fault = error, armed = 1;
}

long shim_calls(void) { return atomic_load(&calls); }

static int ours(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return strncmp(path, folder, strlen(folder)) == 0;
}

// 0: go on; 1: this is the call; fails with `fault`, or is the last.
static int hit(void) { return atomic_fetch_add(&calls, 1) == last; }

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define STOP() do { if (fault) { errno = fault; return -1; } kill(getpid(), SIGKILL); } while (0)

ssize_t write(int fd, const void *p, size_t n) {
  REAL(write);
  if (armed && ours(fd) && hit()) { if (!fault) real(fd, p, n / 2); STOP(); }
  return real(fd, p, n);
}
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at) {
  REAL(pwrite64);
  if (armed && ours(fd) && hit()) { if (!fault) real(fd, p, n / 2, at); STOP(); }
  return real(fd, p, n, at);
}
int fsync(int fd) {
  REAL(fsync);
  if (armed && ours(fd) && hit()) STOP();
  return real(fd);
}
int fdatasync(int fd) {
  REAL(fdatasync);
  if (armed && ours(fd) && hit()) STOP();
  return real(fd);
}
int ftruncate64(int fd, off64_t n) {
  REAL(ftruncate64);
  if (armed && ours(fd) && hit()) STOP();
  return real(fd, n);
}
int unlink(const char *path) {
  REAL(unlink);
  if (armed && strncmp(path, folder, strlen(folder)) == 0 && hit()) STOP();
  return real(path);
}
int rename(const char *from, const char *to) {
  REAL(rename);
  if (armed && strncmp(from, folder, strlen(folder)) == 0 && hit()) STOP();
  return real(from, to);
}
