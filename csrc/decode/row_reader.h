/** One sampler over the network's rows, wherever they live: on the host the
 *  whole row is read, on an accelerator only its candidates and its normaliser
 *  travel where they give the same answer, bit for bit. Evaluates. */
#pragma once

#include "decode/rows.h"
#include "sampling/distribution.h"

namespace qwenmtp::decode {

class RowReader {
 public:
  RowReader(
      const sampling::Params& params,
      bool device_candidates,
      sampling::Ties ties = sampling::Ties::exact)
      : reader_(params, ties), device_(device_candidates) {
  }

  const sampling::Params& params() const {
    return reader_.params();
  }

  /** Rows to read, with what the device says of them asked for, lazily. */
  std::shared_ptr<const HostRows> ask(const mx::array& logits) const;

  /** The token [1] that u draws from a row of its own, as the device sees it:
   *  lazily, and not always what distribution() and u say. None where only the
   *  host can tell. Greedy: the arg-max. */
  std::optional<mx::array> pick(const HostRows& rows, double u) const;

  /** Of row `row`; needs temperature > 0. */
  sampling::Distribution distribution(
      const HostRows& rows,
      int row,
      const sampling::Steering& steering = {},
      sampling::Normalise normalise = sampling::Normalise::twice);

  /** Greedy token; `best` throws NonFiniteLogits, `argmax` looks at nothing. */
  int32_t best(
      const HostRows& rows,
      int row,
      const sampling::Steering& steering = {});
  int32_t argmax(
      const HostRows& rows,
      int row,
      const sampling::Steering& steering = {});

  sampling::LogProbability log_probability(
      const HostRows& rows,
      int row,
      int32_t token,
      int n_top) {
    return reader_.log_probability(rows[row], token, n_top);
  }

 private:
  /** Candidates that the device is asked for, 0 where the row is read, and
   *  what rows are multiplied by. */
  int n_candidates(int size) const;
  float scale() const;
  /** Of a row that nothing has steered. */
  int asked(int size) const {
    return device_ && !params().penalised() ? n_candidates(size) : 0;
  }
  bool on_device(const sampling::Steering& steering) const {
    return device_ && !sampling::steers(params(), steering);
  }
  /** Empty where the row itself has to be read. */
  std::optional<int32_t> best_on_device(
      const HostRows& rows,
      int row,
      const sampling::Steering& steering);

  sampling::Reader reader_;
  bool device_;
};

} // namespace qwenmtp::decode
