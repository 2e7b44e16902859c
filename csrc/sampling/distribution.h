/** From a logits row to the distribution a token is drawn from: temperature,
 *  top-k with exact ties, nucleus on the full mass, NumPy's rounding. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/row.h"

namespace qwenmtp::sampling {

/** Token ids with their mass, in float64. Sparse: ids ascending, every mass
 *  positive. Dense: ids is empty and mass[t] belongs to token t. */
struct Distribution {
  std::vector<int32_t> ids;
  std::vector<double> mass;

  static Distribution point(int32_t token) {
    return {{token}, {1.0}};
  }
  bool dense() const {
    return ids.empty();
  }
  double operator[](int32_t token) const;
};

/** NumPy's pairwise float64 sum. */
double numpy_sum(std::span<const double> values);

/** How often mass is divided by its sum. Per-row reads divide twice and it
 *  shows in the last bit; batched reads divide once. */
enum class Normalise { twice, once };

/** The relaxed draft reader differs in the rounding of one rare case: a row
 *  whose ties reach past 4 * top_k candidates, without a nucleus. Both take the
 *  lowest ids of a tie. */
enum class Ties { exact, relaxed };

/** What an accelerator says of a row of `size` scaled values instead of the
 *  row: at least the top_k largest, of equal ones those with the lowest ids, in
 *  any order; how many values of the row equal the smallest of them; the
 *  largest; the sum of base/exp_sum.h, with its bits. */
struct Candidates {
  std::span<const int32_t> ids;
  std::span<const float> values;
  int64_t ties;
  float max;
  float exp_sum;
  float scale;
  int32_t size;

  /** Whether the host, reading the row, would certainly see `value`, one of the
   *  largest, in the same place. */
  bool same_on_host(float value) const;
};

/** Log-softmax of one token, and of the likeliest ones, best first. */
struct LogProbability {
  float value;
  std::vector<std::pair<int32_t, float>> top;
};

/** Reads rows under one set of parameters; keeps its scratch between calls, so
 *  one reader serves one thread. Throws NonFiniteLogits with the row's census
 *  when a row has NaN, +inf, or nothing above -inf. */
class Reader {
 public:
  explicit Reader(const Params& params, Ties ties = Ties::exact)
      : params_(params), ties_(ties) {
  }

  const Params& params() const {
    return params_;
  }
  /** What a sampled row is multiplied by. */
  float scale() const {
    return static_cast<float>(1.0 / params_.temperature);
  }

  /** Needs temperature > 0. */
  Distribution distribution(
      RowView row,
      const Steering& steering = {},
      Normalise normalise = Normalise::twice);

  /** The row's distribution() without steering, bit for bit. Needs top_k > 0.
   *  False where only the row itself can tell: a non-finite value, or one of
   *  the top_k in the reach of subnormals. */
  bool distribution_from(
      const Candidates& candidates,
      Distribution& out,
      Normalise normalise = Normalise::twice);

  /** Greedy token: the largest value, lowest id on ties. */
  int32_t best(RowView row, const Steering& steering = {});

  /** The same without looking for non-finite values: a row that starts with NaN
   *  gives 0. What greedy acceptance and greedy drafts use. */
  int32_t argmax(RowView row, const Steering& steering = {});

  /** In float32 from the row as it is: no temperature, no penalties. */
  LogProbability log_probability(RowView row, int32_t token, int n_top);

 private:
  struct Candidate {
    float value;
    int32_t id;
  };
  /** What a distribution takes from the rest of its row. */
  struct Whole {
    float max;
    float exp_sum;
    int64_t reach; // values as large as the k-th
    int32_t size;
  };

  Distribution sparse(
      RowView row,
      const Steering& steering,
      Normalise normalise);
  Distribution dense(RowView row, const Steering& steering);
  void collect(RowView row, float scale, size_t k);
  void rank(size_t k);
  int32_t first_at(RowView row, float max) const;
  int64_t reach(size_t k) const;
  Distribution shape(size_t k, const Whole& row, Normalise normalise) const;
  Params params_;
  Ties ties_;
  std::vector<float> block_max_;
  std::vector<float> kth_;
  std::vector<float> steered_;
  std::vector<double> wide_;
  std::vector<Candidate> candidates_;
};

} // namespace qwenmtp::sampling
