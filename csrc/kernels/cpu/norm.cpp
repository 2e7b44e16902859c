/** Norms of rows; few of them, so one thread. */
#include "kernels/cpu/norm.h"

#include "kernels/cpu/families.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

void norm(const NormCall& c) {
  with_activation(c.type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    Scratch scratch;
    const float* const* x = float_rows<T>(c.x, c.n_rows, c.width, scratch);
    const float* weight = widened(c.weight, c.width, scratch);
    float* row = scratch.floats(round_up(c.width, kLanes));
    for (int r = 0; r < c.n_rows; ++r) {
      rms_norm<T>(x[r], weight, row, c.width, c.eps);
      narrow(row, static_cast<T*>(c.y.data) + r * c.y.stride, c.width);
    }
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
