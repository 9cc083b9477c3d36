// Preloaded into a test's process: the k-th call that changes a file under one folder is the last
// thing it does (of a write, half is done), or fails with an error of choice; or every such call is
// written down, with its bytes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
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

static int under(const char *path) { return strncmp(path, folder, strlen(folder)) == 0; }

static int path_of(int fd, char path[4096]) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, 4095);
  if (n < 0) return 0;
  path[n] = 0;
  return under(path);
}

static int ours(int fd) {
  char path[4096];
  return path_of(fd, path);
}

// 0: go on; 1: this is the call; fails with `fault`, or is the last.
static int hit(void) { return atomic_fetch_add(&calls, 1) == last; }

static int record = -1;

void shim_record(const char *where, const char *to) {
  snprintf(folder, sizeof folder, "%s", where);
  record = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

struct note { int64_t what, at, path_bytes, num_bytes; };

// What is done, to which file, where, and the bytes (of a rename: the new name).
static void note_path(char what, const char *path, off64_t at, const void *p, size_t n) {
  static __typeof__(&write) real;
  if (!real) real = dlsym(RTLD_NEXT, "write");
  struct note head = {what, at, (int64_t)strlen(path), (int64_t)n};
  if (real(record, &head, sizeof head) < 0 || real(record, path, strlen(path)) < 0) return;
  if (n && real(record, p, n) < 0) return;
}

static void note(char what, int fd, off64_t at, const void *p, size_t n) {
  char path[4096];
  if (record >= 0 && fd != record && path_of(fd, path)) note_path(what, path, at, p, n);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define STOP() do { if (fault) { errno = fault; return -1; } kill(getpid(), SIGKILL); } while (0)

ssize_t write(int fd, const void *p, size_t n) {
  REAL(write);
  note('w', fd, record >= 0 ? lseek64(fd, 0, SEEK_CUR) : 0, p, n);
  if (armed && ours(fd) && hit()) { if (!fault) real(fd, p, n / 2); STOP(); }
  return real(fd, p, n);
}
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at) {
  REAL(pwrite64);
  note('w', fd, at, p, n);
  if (armed && ours(fd) && hit()) { if (!fault) real(fd, p, n / 2, at); STOP(); }
  return real(fd, p, n, at);
}
int fsync(int fd) {
  REAL(fsync);
  note('s', fd, 0, NULL, 0);
  if (armed && ours(fd) && hit()) STOP();
  return real(fd);
}
int fdatasync(int fd) {
  REAL(fdatasync);
  note('s', fd, 0, NULL, 0);
  if (armed && ours(fd) && hit()) STOP();
  return real(fd);
}
int ftruncate64(int fd, off64_t n) {
  REAL(ftruncate64);
  note('t', fd, n, NULL, 0);
  if (armed && ours(fd) && hit()) STOP();
  return real(fd, n);
}
int unlink(const char *path) {
  REAL(unlink);
  if (record >= 0 && under(path)) note_path('u', path, 0, NULL, 0);
  if (armed && under(path) && hit()) STOP();
  return real(path);
}
int rename(const char *from, const char *to) {
  REAL(rename);
  if (record >= 0 && under(from)) note_path('r', from, 0, to, strlen(to));
  if (armed && under(from) && hit()) STOP();
  return real(from, to);
}
