/** The CPU kernels' pool: who gets which part. */
#include "kernels/pool.h"

#include <atomic>
#include <vector>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "kernels/tickets.h"
#include "testing.h"

namespace nb = nanobind;
using namespace qwenmtp;

namespace {

std::vector<int> take_all(kernels::Tickets& tickets, uint32_t job) {
  std::vector<int> out;
  for (int i = tickets.take(job); i >= 0; i = tickets.take(job)) {
    out.push_back(i);
  }
  return out;
}

/** What a worker of a finished job gets while the next one begins, and the
 *  parts of that next job. */
std::pair<int, std::vector<int>> late_take(int parts, int next_parts) {
  kernels::Tickets tickets;
  const uint32_t first = tickets.begin(parts);
  for (size_t i = take_all(tickets, first).size(); i > 0; --i) {
    tickets.done();
  }
  int late = -1;
  const uint32_t second =
      tickets.begin(next_parts, [&] { late = tickets.take(first); });
  return {late, take_all(tickets, second)};
}

/** How often each part ran in a job, over `jobs` jobs of 2 .. 65 parts: jobs
 *  with a part that did not run exactly once. */
int wrong_jobs(int jobs) {
  int wrong = 0;
  for (int j = 0; j < jobs; ++j) {
    std::vector<std::atomic<int>> ran(2 + j % 64);
    kernels::run_parts(
        static_cast<int>(ran.size()),
        [](void* context, int i) {
          ++(*static_cast<std::vector<std::atomic<int>>*>(context))[i];
        },
        &ran);
    bool once = true;
    for (const auto& n : ran) {
      once = once && n == 1;
    }
    wrong += !once;
  }
  return wrong;
}

} // namespace

void qwenmtp::testing::register_pool(nb::module_& m) {
  m.def("pool_late_take", &late_take);
  m.def(
      "pool_wrong_jobs",
      &wrong_jobs,
      nb::call_guard<nb::gil_scoped_release>());
}
