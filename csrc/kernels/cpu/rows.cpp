/** y = x W^T for several matrices over the same rows. */
#include "kernels/cpu/families.h"
#include "kernels/cpu/product.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

void rows(const RowsCall& call) {
  with_activation(call.type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    Scratch scratch;
    auto x = float_rows<T>(call.x, call.n_rows, call.weights[0].in, scratch);
    all_products(
        x,
        call.n_rows,
        call.weights,
        call.n_matrices,
        [&](int m, int r, int begin, int end, const float* values) {
          T* y = static_cast<T*>(call.y[m].data) + r * call.y[m].stride;
          narrow(values, y + begin, end - begin);
        });
  });
}

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
