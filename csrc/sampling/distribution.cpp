#include "sampling/distribution.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "sampling/scan.h"

namespace qwenmtp::sampling {

namespace {

[[noreturn]] void throw_non_finite(const char* where, RowView row) {
  int64_t nan = 0;
  int64_t inf = 0;
  for (int32_t i = 0; i < row.size; i++) {
    nan += std::isnan(row[i]);
    inf += std::isinf(row[i]);
  }
  throw NonFiniteLogits(
      std::string("[sampling.") + where + "] logits with nan=" +
      std::to_string(nan) + ", inf=" + std::to_string(inf) +
      ", vocab=" + std::to_string(row.size) + ", expected a finite maximum");
}

bool usable(const Scan& scan) {
  return !scan.has_nan && std::isfinite(scan.max);
}

float logsumexp(float max, float exp_sum) {
  return static_cast<float>(max + std::log(double{exp_sum}));
}

void divide(std::vector<double>& values, double total) {
  for (double& v : values) {
    v /= total;
  }
}

/** Zeroes the entries whose mass before them, in rank order, reached top_p. */
template <typename Mass>
void cut_nucleus(size_t n, double top_p, Mass mass) {
  double before = 0;
  for (size_t i = 0; i < n; i++) {
    const double m = mass(i);
    if (!(before < top_p)) {
      mass(i) = 0;
    }
    before += m;
  }
}

} // namespace

double Distribution::operator[](int32_t token) const {
  if (dense()) {
    return mass[token];
  }
  const auto it = std::lower_bound(ids.begin(), ids.end(), token);
  return it != ids.end() && *it == token ? mass[it - ids.begin()] : 0.0;
}

double numpy_sum(std::span<const double> v) {
  const size_t n = v.size();
  if (n < 8) {
    return std::accumulate(v.begin(), v.end(), 0.0);
  }
  if (n > 128) {
    const size_t half = n / 2 - (n / 2) % 8;
    return numpy_sum(v.first(half)) + numpy_sum(v.subspan(half));
  }
  double a[8];
  std::copy_n(v.begin(), 8, a);
  size_t i = 8;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; j++) {
      a[j] += v[i + j];
    }
  }
  double total =
      ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
  for (; i < n; i++) {
    total += v[i];
  }
  return total;
}

Distribution Reader::distribution(
    RowView row,
    const Steering& steering,
    Normalise normalise) {
  return params_.top_k > 0 ? sparse(row, steering, normalise)
                           : dense(row, steering);
}

/** Fills candidates_ with at least the k largest scaled values. The k-th
 *  largest block maximum bounds the k-th largest value from below, so only the
 *  blocks that reach it are read again, and every value equal to the cutoff is
 *  among the candidates. */
void Reader::collect(RowView row, float scale, size_t k) {
  float bound = -std::numeric_limits<float>::infinity();
  if (k <= block_max_.size()) {
    kth_ = block_max_;
    std::nth_element(
        kth_.begin(),
        kth_.begin() + (k - 1),
        kth_.end(),
        std::greater<>());
    bound = kth_[k - 1];
  }
  candidates_.clear();
  float values[kScanBlock];
  for (size_t block = 0; block < block_max_.size(); block++) {
    if (block_max_[block] < bound) {
      continue;
    }
    const int32_t begin = static_cast<int32_t>(block) * kScanBlock;
    const int32_t n = std::min(kScanBlock, row.size - begin);
    scaled_values(row, scale, begin, n, values);
    for (int32_t i = 0; i < n; i++) {
      if (values[i] >= bound) {
        candidates_.push_back({values[i], begin + i});
      }
    }
  }
}

/** Puts the k best candidates first: value descending, id ascending. */
void Reader::rank(size_t k) {
  const auto above = [](const Candidate& a, const Candidate& b) {
    return a.value != b.value ? a.value > b.value : a.id < b.id;
  };
  const auto kth = candidates_.begin() + static_cast<ptrdiff_t>(k);
  std::nth_element(candidates_.begin(), kth - 1, candidates_.end(), above);
  std::sort(candidates_.begin(), kth, above);
}

Distribution Reader::sparse(
    RowView row,
    const Steering& steering,
    Normalise normalise) {
  row = steered(row, params_, steering, steered_);
  const Scan scan = scan_row(row, scale(), params_.nucleus(), block_max_);
  if (!usable(scan)) {
    throw_non_finite("distribution", row);
  }
  const size_t k = std::min<uint64_t>(params_.top_k, row.size);
  collect(row, scale(), k);
  rank(k);
  return shape(k, {scan.max, scan.exp_sum, reach(k), row.size}, normalise);
}

/** How many candidates are as large as the k-th. */
int64_t Reader::reach(size_t k) const {
  return std::count_if(
      candidates_.begin(),
      candidates_.end(),
      [cutoff = candidates_[k - 1].value](const Candidate& c) {
        return c.value >= cutoff;
      });
}

bool Candidates::same_on_host(float value) const {
  // A device may read and write subnormal numbers as zero. With this much room
  // below it, such a value changes no order and no bit of the sum.
  constexpr float kSmallest = std::numeric_limits<float>::min();
  return std::isfinite(max) && std::isfinite(exp_sum) && std::isfinite(value) &&
         scale <= 0x1p40f &&
         std::abs(value) >= kSmallest * std::max(1.0f, scale);
}

bool Reader::distribution_from(
    const Candidates& from,
    Distribution& out,
    Normalise normalise) {
  const size_t k = std::min<uint64_t>(params_.top_k, from.size);
  if (!from.same_on_host(from.max)) {
    return false;
  }
  candidates_.clear();
  for (size_t i = 0; i < from.ids.size(); i++) {
    candidates_.push_back({from.values[i], from.ids[i]});
  }
  rank(k);
  for (size_t i = 0; i < k; i++) {
    if (!from.same_on_host(candidates_[i].value)) {
      return false;
    }
  }
  const float smallest =
      *std::min_element(from.values.begin(), from.values.end());
  int64_t reached = reach(k);
  if (smallest == candidates_[k - 1].value) {
    reached += from.ties -
               std::count(from.values.begin(), from.values.end(), smallest);
  }
  out = shape(k, {from.max, from.exp_sum, reached, from.size}, normalise);
  return true;
}

/** Mass of candidates_[0..k), which are ranked. The sum is the whole row's,
 *  used by the nucleus alone. */
Distribution Reader::shape(size_t k, const Whole& row, Normalise normalise)
    const {
  std::vector<double> mass(k);
  if (params_.nucleus()) {
    const float total = logsumexp(row.max, row.exp_sum);
    for (size_t i = 0; i < k; i++) {
      const float log_mass = candidates_[i].value - total;
      mass[i] = static_cast<float>(std::exp(double{log_mass}));
    }
    cut_nucleus(k, params_.top_p, [&](size_t i) -> double& { return mass[i]; });
  } else {
    for (size_t i = 0; i < k; i++) {
      mass[i] = std::exp(double{candidates_[i].value} - candidates_[0].value);
    }
    divide(mass, numpy_sum(mass));
    const auto m = std::min<int64_t>(4 * static_cast<int64_t>(k), row.size);
    if (ties_ == Ties::exact && m > static_cast<int64_t>(k) && row.reach >= m) {
      // The reference's exact re-selection takes a float32 softmax instead.
      for (double& w : mass) {
        w = static_cast<float>(w);
      }
    }
  }
  const double whole = numpy_sum(mass);
  std::vector<size_t> kept;
  std::vector<double> kept_mass;
  for (size_t i = 0; i < k; i++) {
    if (mass[i] > 0) {
      kept.push_back(i);
      kept_mass.push_back(mass[i]);
    }
  }
  const double total =
      normalise == Normalise::once ? whole : numpy_sum(kept_mass);
  std::sort(kept.begin(), kept.end(), [&](size_t a, size_t b) {
    return candidates_[a].id < candidates_[b].id;
  });
  Distribution out;
  for (size_t i : kept) {
    out.ids.push_back(candidates_[i].id);
    out.mass.push_back(mass[i] / total);
  }
  if (normalise == Normalise::twice) {
    divide(out.mass, numpy_sum(out.mass));
  }
  return out;
}

Distribution Reader::dense(RowView row, const Steering& steering) {
  steered64(row, params_, steering, wide_);
  const size_t n = wide_.size();
  double max = -std::numeric_limits<double>::infinity();
  bool has_nan = false;
  for (double& x : wide_) {
    x /= params_.temperature;
    has_nan |= x != x;
    max = std::max(max, x);
  }
  if (has_nan || !std::isfinite(max)) {
    throw_non_finite("distribution", row);
  }
  Distribution out;
  out.mass.resize(n);
  for (size_t i = 0; i < n; i++) {
    out.mass[i] = std::exp(wide_[i] - max);
  }
  divide(out.mass, numpy_sum(out.mass));
  if (params_.nucleus()) {
    std::vector<int32_t> rank(n);
    std::iota(rank.begin(), rank.end(), 0);
    std::sort(rank.begin(), rank.end(), [&](int32_t a, int32_t b) {
      return out.mass[a] != out.mass[b] ? out.mass[a] > out.mass[b] : a < b;
    });
    cut_nucleus(n, params_.top_p, [&](size_t i) -> double& {
      return out.mass[rank[i]];
    });
  }
  divide(out.mass, numpy_sum(out.mass));
  return out;
}

/** First id whose value is max; block_max_ is that of the row's scan. */
int32_t Reader::first_at(RowView row, float max) const {
  const auto block =
      std::find(block_max_.begin(), block_max_.end(), max) - block_max_.begin();
  int32_t i = static_cast<int32_t>(block) * kScanBlock;
  while (row[i] != max) {
    i++;
  }
  return i;
}

int32_t Reader::argmax(RowView row, const Steering& steering) {
  row = steered(row, params_, steering, steered_);
  if (std::isnan(row[0])) {
    return 0;
  }
  return first_at(row, scan_row(row, 1.0f, false, block_max_).max);
}

LogProbability Reader::log_probability(RowView row, int32_t token, int n_top) {
  const Scan scan = scan_row(row, 1.0f, true, block_max_);
  const float total = logsumexp(scan.max, scan.exp_sum);
  LogProbability out{row[token] - total, {}};
  const size_t k = std::min(n_top, row.size);
  if (k > 0) {
    collect(row, 1.0f, k);
    rank(k);
    for (size_t i = 0; i < k; i++) {
      out.top.emplace_back(candidates_[i].id, candidates_[i].value - total);
    }
  }
  return out;
}

int32_t Reader::best(RowView row, const Steering& steering) {
  row = steered(row, params_, steering, steered_);
  const Scan scan = scan_row(row, 1.0f, false, block_max_);
  if (!usable(scan)) {
    throw_non_finite("best", row);
  }
  return first_at(row, scan.max);
}

} // namespace qwenmtp::sampling
