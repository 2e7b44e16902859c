#include "model/model.h"

namespace qwenmtp::model {

namespace {

const Config& validated(const Config& config) {
  config.validate();
  return config;
}

} // namespace

Model::Model(const Config& config, Weights weights, const ple::OpenOptions& ple)
    : dtype_(weights.dtype()), trunk_(validated(config), weights, ple) {
  if (MtpHead::present(weights)) {
    head_.emplace(trunk_, weights);
  }
  weights.require_all_used();
  bytes_by_kind_ = weights.bytes_by_kind();
}

} // namespace qwenmtp::model
