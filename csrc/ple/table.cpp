#include "ple/table.h"

#include "base/error.h"
#include "ple/planar.h"
#include "ple/row_file.h"

namespace qwenmtp::ple {

Table Table::open(const TableSpec& spec) {
  Table planar = open_planar(spec);
  if (spec.row_file.empty()) {
    return planar;
  }
  return open_row_file(spec.row_file, planar, spec.checksums);
}

void Table::gather(std::span<const int64_t> rows, RowType type, void* out)
    const {
  std::vector<std::byte> record(format_.record_bytes());
  const size_t stride = static_cast<size_t>(format_.dim) * value_bytes(type);
  auto* p_out = static_cast<std::byte*>(out);
  ReadCost cost;
  for (const int64_t row : rows) {
    if (row < 0 || row >= rows_) {
      throw InvalidArgument(
          "[ple.Table.gather] row " + std::to_string(row) + ", expected 0.." +
          std::to_string(rows_ - 1));
    }
    read({&row, 1}, record.data(), cost);
    decode_row(format_, record.data(), type, p_out);
    p_out += stride;
  }
}

} // namespace qwenmtp::ple
