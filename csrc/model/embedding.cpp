#include "model/embedding.h"

#include "base/error.h"
#include "kernels/embed.h"

namespace qwenmtp::model {

Embedding::Embedding(Linear table, mx::Dtype dtype)
    : table_(std::move(table)), dtype_(dtype) {
}

mx::array Embedding::operator()(std::span<const int32_t> ids, int copies)
    const {
  const int vocab = table_.weight.shape(0);
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      throw InvalidArgument(
          "[model.forward] token id " + std::to_string(id) +
          ", expected 0 .. " + std::to_string(vocab - 1));
    }
  }
  const mx::array known(ids.begin(), {static_cast<int>(ids.size())});
  return kernels::embed(known, table_.matrix(), copies, dtype_);
}

mx::array Embedding::operator()(const mx::array& ids) const {
  return kernels::embed(ids, table_.matrix(), 1, dtype_);
}

} // namespace qwenmtp::model
