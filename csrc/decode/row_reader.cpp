#include "decode/row_reader.h"

#include <algorithm>

namespace qwenmtp::decode {

namespace {

/** Sizes of the candidate list; a few, so that a new top_k builds no kernel. */
constexpr int kSizes[] = {1, 32, 128, 512};

} // namespace

int RowReader::n_candidates(int size) const {
  const int64_t k = params().greedy() ? 1 : params().top_k;
  for (const int m : kSizes) {
    if (0 < k && k <= m) {
      return std::min(m, size);
    }
  }
  return 0;
}

float RowReader::scale() const {
  return params().greedy() ? 1.0f : reader_.scale();
}

std::shared_ptr<const HostRows> RowReader::ask(const mx::array& logits) const {
  auto rows = std::make_shared<HostRows>(logits);
  if (const int m = asked(rows->size()); m > 0) {
    rows->sampled(scale(), m);
  }
  return rows;
}

std::optional<mx::array> RowReader::pick(const HostRows& rows, double u) const {
  const int m = asked(rows.size());
  if (m == 0) {
    return {};
  }
  const auto& s = rows.sampled(scale(), m);
  if (params().greedy()) {
    return mx::reshape(s.ids, {1});
  }
  const kernels::PickLaw law{
      static_cast<int>(std::min<int64_t>(params().top_k, m)),
      params().nucleus() ? static_cast<float>(params().top_p) : 1.0f};
  return kernels::pick(s, law, static_cast<float>(u));
}

sampling::Distribution RowReader::distribution(
    const HostRows& rows,
    int row,
    const sampling::Steering& steering,
    sampling::Normalise normalise) {
  const int m = on_device(steering) ? n_candidates(rows.size()) : 0;
  sampling::Distribution out;
  if (m > 0 && reader_.distribution_from(
                   rows.candidates(row, scale(), m),
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
