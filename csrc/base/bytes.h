/** Little-endian cursors over a fixed span. A step past the end throws
 *  InternalError: sizes of hostile data are checked before a cursor exists. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/error.h"

namespace qwenmtp::base {

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> data) : rest_(data) {
  }

  template <typename T>
  T take() {
    static_assert(std::is_integral_v<T>);
    std::make_unsigned_t<T> value = 0;
    auto raw = bytes(sizeof(T));
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<std::make_unsigned_t<T>>(raw[i]) << (8 * i);
    }
    return static_cast<T>(value);
  }

  std::span<const std::byte> bytes(size_t n) {
    if (n > rest_.size()) {
      throw InternalError("[bytes.take] past the end of the span");
    }
    auto head = rest_.first(n);
    rest_ = rest_.subspan(n);
    return head;
  }

  /** Fills a byte array such as a digest. */
  template <typename A>
  void fill(A& out) {
    std::memcpy(out.data(), bytes(out.size()).data(), out.size());
  }

 private:
  std::span<const std::byte> rest_;
};

class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> data) : rest_(data) {
  }

  template <typename T>
  void put(T value) {
    static_assert(std::is_integral_v<T>);
    auto out = room(sizeof(T));
    for (size_t i = 0; i < sizeof(T); ++i) {
      out[i] = static_cast<std::byte>(
          static_cast<std::make_unsigned_t<T>>(value) >> (8 * i));
    }
  }

  /** Copies a byte array such as a digest. */
  template <typename A>
  void copy(const A& data) {
    if (!data.empty()) {
      std::memcpy(room(data.size()).data(), data.data(), data.size());
    }
  }

  void zeros(size_t n) {
    std::memset(room(n).data(), 0, n);
  }

 private:
  std::span<std::byte> room(size_t n) {
    if (n > rest_.size()) {
      throw InternalError("[bytes.put] past the end of the span");
    }
    auto head = rest_.first(n);
    rest_ = rest_.subspan(n);
    return head;
  }

  std::span<std::byte> rest_;
};

} // namespace qwenmtp::base
