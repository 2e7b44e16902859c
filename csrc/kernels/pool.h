/** The CPU kernels' own threads and scratch memory. Compiled for the baseline
 *  instruction set; the bodies reach it through plain functions. */
#pragma once

#include <cstddef>

namespace qwenmtp::kernels {

/** Threads that work on one job, the caller included. At least 1; the default
 *  is one per core. Takes effect with the next job. */
void set_threads(int count);
int threads();

/** Runs part(context, i) for i in [0, parts) and returns when all are done.
 *  Parts run in any order on any thread; a job started while another one runs
 *  does its parts on the calling thread. Parts must not throw. */
void run_parts(int parts, void (*part)(void* context, int i), void* context);

/** Memory of the calling thread, 64-byte aligned, returned in reverse order
 *  when the object goes. Blocks stay with the thread for the next user. */
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* bytes(size_t count);
  float* floats(size_t count) {
    return static_cast<float*>(bytes(count * sizeof(float)));
  }

 private:
  size_t block_;
  size_t used_;
};

} // namespace qwenmtp::kernels
