/** Token ids -> rows of the n-gram table. Pure arithmetic; reads no file.
 *  Law: ../shared/reference/model.md 10.1. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qwenmtp::ple {

struct NgramConfig {
  int64_t vocab = 0;
  int ngram_size = 3;
  int heads_per_ngram = 8;
  std::vector<int64_t> multipliers; // [ngram_size], newest token first
  std::vector<int64_t> sizes;       // [heads], rows of each head
  std::vector<int64_t> offsets;     // [heads], first row of each head
  int32_t eos = 0;                  // segments end here; also the padding

  /** Rows looked up per token: bigram heads, then trigram heads, ... */
  int heads() const {
    return (ngram_size - 1) * heads_per_ngram;
  }

  /** Tokens before a chunk that its rows depend on. */
  int history_len() const {
    return ngram_size - 1;
  }
};

/** Throws ModelFormatError unless lengths agree, every size is positive and
 *  the heads lie one after the other within `table_rows`. */
void check(const NgramConfig& config, int64_t table_rows);

/** rows [n, heads] of `ids` [n]; `history` [ngram_size - 1] holds the ids
 * before them, oldest first, eos where the text has not begun. Throws
 *  InvalidArgument if an id is outside the vocabulary. */
void ngram_rows(
    const NgramConfig& config,
    std::span<const int32_t> ids,
    std::span<const int64_t> history,
    int64_t* rows);

/** The hash multipliers [ngram_size] that a checkpoint of this seed carries. */
std::vector<int64_t> ngram_multipliers(
    uint64_t seed,
    int64_t vocab,
    int ngram_size,
    int ple_index);

struct HeadLayout {
  std::vector<int64_t> sizes;   // consecutive primes
  std::vector<int64_t> offsets; // sums of the sizes before
};

/** Sizes and offsets of PLE layer number `ple_index`, primes from `base` on. */
HeadLayout ngram_heads(int64_t base, int n_heads, int ple_index);

} // namespace qwenmtp::ple
