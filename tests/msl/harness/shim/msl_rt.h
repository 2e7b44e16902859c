// Interface between the CPU shim headers, the fiber scheduler and Python.
#pragma once
#include <cstddef>
#include <cstdint>

struct msl_u3 {
  uint32_t x, y, z;
};

// Everything a [[...]] kernel parameter can ask for.
struct msl_ids {
  msl_u3 thread_position_in_grid, thread_position_in_threadgroup;
  msl_u3 threadgroup_position_in_grid, threadgroups_per_grid;
  msl_u3 threads_per_grid, threads_per_threadgroup;
  msl_u3 dispatch_threads_per_threadgroup, grid_origin, grid_size;
  uint32_t thread_index_in_threadgroup, thread_index_in_simdgroup;
  uint32_t simdgroup_index_in_threadgroup, simdgroups_per_threadgroup;
  uint32_t dispatch_simdgroups_per_threadgroup, threads_per_simdgroup;
  uint32_t thread_execution_width, thread_index_in_quadgroup;
  uint32_t quadgroup_index_in_threadgroup, quadgroups_per_threadgroup;
  uint32_t dispatch_quadgroups_per_threadgroup;
};

// A call site: compilers duplicate calls, so a return address does not name it.
struct msl_site {
  const char* file;
  int line;
  const char* op;
};

enum { MSL_MEM_NONE = 0, MSL_MEM_DEVICE = 1, MSL_MEM_THREADGROUP = 2 };

extern "C" {
// Rendezvous of the live lanes of a simdgroup. Returns the mask of lanes that
// took part; *snap then points at 32 slots of 16 bytes, one per lane, valid
// until this lane's next exchange.
uint32_t msl_simd_exchange(
    const void* in,
    unsigned size,
    msl_site site,
    const uint8_t (**snap)[16]);
void msl_barrier(int scope_is_threadgroup, unsigned flags, msl_site site);
uint32_t msl_lane();
enum { MSL_PLAIN = 0, MSL_ADD = 1, MSL_LOAD = 2, MSL_STORE = 3 };
void msl_atomic_access(const void* p, unsigned size, int kind);
void msl_report(const char* kind, msl_site site, const char* text);

// Host side; harness/cpu.py mirrors these structures.
struct msl_buffer {
  void* base;
  uint64_t size;
  uint64_t used; // out: end of the highest access
  uint32_t elem, flags;
  const char* name;
};
enum { MSL_BUF_OUT = 1, MSL_BUF_INIT = 2 };

struct msl_tgvar {
  void* base;
  uint64_t size;
  const char* name;
};

struct msl_launch {
  void (*entry)(void* const*, const msl_ids*);
  uint32_t grid[3], group[3];
  msl_buffer* bufs;
  uint32_t n_bufs;
  const msl_tgvar* tgvars;
  uint32_t n_tgvars;
  uint32_t schedule; // 0 ascending, 1 descending, 2 random
  uint64_t seed;
  uint32_t cuda_grid; // 1: whole threadgroups at the edges (CUDA's rule)
};

struct msl_finding {
  char kind[32];
  char text[400];
  uint64_t pc1, pc2;
  char file[128];
  int line;
  uint64_t count;
};

// Runs a launch; returns the number of findings written to out.
int msl_run(const msl_launch*, msl_finding* out, int max_out);
}
