#include "decode/row_reader.h"

#include <algorithm>
#include <cmath>

#include "decode/sync.h"

namespace qwenmtp::decode {

/** False where the whole row has to be read: a tie at the cutoff that may reach
 *  outside the candidates, or a row that is not finite. */
bool RowReader::read_candidates(
    const mx::array& row,
    sampling::Distribution& out) {
  const int size = row.size();
  const int m = static_cast<int>(
      std::min<int64_t>(size, 4 * std::min<int64_t>(params().top_k, size)));
  const auto scale = static_cast<float>(1.0 / params().temperature);
  const mx::array scaled = mx::astype(row, mx::float32) * scale;
  const mx::array ids = mx::astype(
      mx::slice(mx::argpartition(mx::negative(scaled), m - 1), {0}, {m}),
      mx::int32);
  const mx::array values = mx::contiguous(mx::take(scaled, ids));
  mx::array total = mx::logsumexp(scaled);
  sync(ids, values, total);
  const mx::array host_ids = mx::contiguous(ids);
  sync(host_ids);
  return reader_.distribution_from(
      {std::span(host_ids.data<int32_t>(), m),
       std::span(values.data<float>(), m),
       total.item<float>(),
       size},
      out);
}

sampling::Distribution RowReader::distribution(
    const HostRows& rows,
    int row,
    const sampling::Steering& steering,
    sampling::Normalise normalise) {
  sampling::Distribution out;
  if (on_device(steering) && params().top_k > 0 &&
      normalise == sampling::Normalise::twice &&
      read_candidates(rows.row(row), out)) {
    return out;
  }
  return reader_.distribution(rows[row], steering, normalise);
}

int32_t RowReader::best(
    const HostRows& rows,
    int row,
    const sampling::Steering& steering) {
  if (on_device(steering)) {
    const mx::array values = rows.row(row);
    mx::array token = mx::astype(mx::argmax(values), mx::int32);
    mx::array finite = mx::logical_not(
        mx::logical_or(mx::any(mx::isnan(values)), mx::isinf(mx::max(values))));
    sync(token, finite);
    if (finite.item<bool>()) {
      return token.item<int32_t>();
    }
  }
  return reader_.best(rows[row], steering);
}

int32_t RowReader::argmax(
    const HostRows& rows,
    int row,
    const sampling::Steering& steering) {
  if (on_device(steering)) {
    return mx::astype(mx::argmax(rows.row(row)), mx::int32).item<int32_t>();
  }
  return reader_.argmax(rows[row], steering);
}

} // namespace qwenmtp::decode
