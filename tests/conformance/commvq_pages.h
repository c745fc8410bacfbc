// Reads codes and numbers of tokens from a snapshot bit by bit, as the format description says.
#pragma once

#include "page_format.h"
#include "support/codebook.h"
#include "support/float_formats.h"
#include "support/handles.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace conformance {

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

// The first pages of each head in a snapshot of one layer with codes on both sides and consecutive positions, followed
// by an open page.
class CommvqPages {
 public:
  CommvqPages(const kvq_test::Snapshot& snapshot, const kvq_test::TestCodebook& book, int32_t pages)
      : snapshot_(snapshot), book_(book), pages_(pages) {
    size_t place = 64 + 8;
    const size_t key_bytes = (at(stages()) * 8 * at(index_bits()) + 2 * at(share(book.codes.norms)) + 7) / 8 * 8;
    const size_t value_bytes = (4 * at(lanes()) + 2 * at(share(book.codes.scope)) + 7) / 8 * 8;
    for (int32_t head = 0; head < book.kv_heads; ++head) {
      place += 8;
      for (int32_t page = 0; page < pages_; ++page, place += 24 + key_bytes + value_bytes) {
        keys_.push_back(place + 24);
        values_.push_back(place + 24 + key_bytes);
      }
      place += 24 + at(kPageSlots) * 4 * at((book.head_dim + 15) / 16 * 16);  // the open page
    }
    CHECK(place + 8 == snapshot.size());
  }

  int32_t stages() const { return book_.codes.stages * book_.groups(); }
  int32_t index_bits() const { return std::ilogb(book_.codes.codes); }
  int32_t lanes() const { return book_.codes.bits * book_.head_dim; }

  // Index a (side 0) or b (side 1) of a head's token in stage `stage` of group `group`.
  int32_t index(int32_t head, int32_t token, int32_t group, int32_t stage, int32_t side) const {
    const int32_t first =
        (group * book_.codes.stages + stage) * 2 * kPageSlots + side * kPageSlots + token % kPageSlots;
    int32_t result = 0;
    for (int32_t bit = 0; bit < index_bits(); ++bit) {
      const int32_t from = first * index_bits() + bit;
      result += bit_at(keys(head, token) + at(from / 8), from % 8) << bit;
    }
    return result;
  }
  // Bit `bit` of the code of a token, or of one head of it.
  bool is_set(int32_t head, int32_t token, int32_t bit) const {
    if (book_.codes.scope == KVQ_SCOPE_LAYER) head = bit / lanes();
    const int32_t slot = token % kPageSlots;
    return bit_at(values(head, token) + 4 * at(bit % lanes()) + at(slot % 4), slot / 4) != 0;
  }
  double norm(int32_t head, int32_t token) const {
    return number([&](int32_t h) { return keys(h, token) + at(stages()) * 8 * at(index_bits()); }, book_.codes.norms,
                  head, token);
  }
  double scale(int32_t head, int32_t token) const {
    return number([&](int32_t h) { return values(h, token) + 4 * at(lanes()); }, book_.codes.scope, head, token);
  }

 private:
  int32_t share(kvq_scope scope) const {
    return scope == KVQ_SCOPE_HEAD ? kPageSlots : (kPageSlots + book_.kv_heads - 1) / book_.kv_heads;
  }
  size_t keys(int32_t head, int32_t token) const { return keys_[at(head * pages_ + token / kPageSlots)]; }
  size_t values(int32_t head, int32_t token) const { return values_[at(head * pages_ + token / kPageSlots)]; }
  int32_t bit_at(size_t byte, int32_t bit) const { return static_cast<int32_t>(snapshot_[byte]) >> bit & 1; }

  template <typename Place>
  double number(const Place& place, kvq_scope scope, int32_t head, int32_t token) const {
    const int32_t slot = token % kPageSlots;
    const int32_t page = scope == KVQ_SCOPE_LAYER ? slot / share(scope) : head;
    uint16_t bits = 0;
    std::memcpy(&bits, snapshot_.data() + place(page) + 2 * at(slot % share(scope)), 2);
    return kvq_test::decode_bits(bits, kvq_test::kHalf);
  }

  const kvq_test::Snapshot& snapshot_;
  const kvq_test::TestCodebook& book_;
  int32_t pages_;
  std::vector<size_t> keys_;  // [kv_heads][pages]
  std::vector<size_t> values_;
};

}  // namespace conformance
