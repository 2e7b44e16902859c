#include "decode/row_reader.h"

#include <algorithm>

namespace qwenmtp::decode {

namespace {

/** Sizes of the candidate list; a few, so that a new top_k builds no kernel. */
constexpr int kSizes[] = {1, 32, 128, 512};

/** Candidates for the k best of `size` values; 0 where the row is read. */
int candidates_for(int64_t k, int size) {
  for (const int m : kSizes) {
    if (k <= m) {
      return std::min(m, size);
    }
  }
  return 0;
}

} // namespace

sampling::Distribution RowReader::distribution(
    const HostRows& rows,
    int row,
    const sampling::Steering& steering,
    sampling::Normalise normalise) {
  const int m = on_device(steering) && params().top_k > 0
                    ? candidates_for(params().top_k, rows.size())
                    : 0;
  sampling::Distribution out;
  if (m > 0 && reader_.distribution_from(
                   rows.candidates(row, reader_.scale(), m),
                   out,
                   normalise)) {
    return out;
  }
  return reader_.distribution(rows[row], steering, normalise);
}

std::optional<int32_t> RowReader::best_on_device(
    const HostRows& rows,
    int row,
    const sampling::Steering& steering) {
  if (!on_device(steering)) {
    return {};
  }
  const sampling::Candidates one = rows.candidates(row, 1.0f, 1);
  return one.same_on_host(one.values[0]) ? std::optional(one.ids[0])
                                         : std::nullopt;
}

int32_t RowReader::best(
    const HostRows& rows,
    int row,
    const sampling::Steering& steering) {
  const auto token = best_on_device(rows, row, steering);
  return token ? *token : reader_.best(rows[row], steering);
}

int32_t RowReader::argmax(
    const HostRows& rows,
    int row,
    const sampling::Steering& steering) {
  const auto token = best_on_device(rows, row, steering);
  return token ? *token : reader_.argmax(rows[row], steering);
}

} // namespace qwenmtp::decode
