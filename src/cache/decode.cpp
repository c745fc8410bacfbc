#include "cache/decode.h"

#include "core/error.h"

#include <algorithm>

namespace kvq {

void decode(const Sequence& sequence, const SlotSelection& selection, const DecodedSlots& out) {
  Cache& cache = sequence.cache;
  const Sequence::PageList& list = sequence.list(selection.layer, selection.head);
  int64_t held = 0;
  for (const Page* page : list) held += page->count;
  if (selection.n < 1) fail(KVQ_E_ARGUMENT, "n is %d, must be at least 1", selection.n);
  if (selection.begin < 0 || static_cast<int64_t>(selection.begin) + selection.n > held) {
    fail(KVQ_E_ARGUMENT, "begin is %d and n is %d, but the head holds %lld slots", selection.begin, selection.n,
         static_cast<long long>(held));
  }
  const auto dim = static_cast<size_t>(cache.head_dim);
  int32_t first_slot = 0;
  size_t done = 0;
  Vector<std::byte> bytes{StlAllocator<std::byte>(cache.allocator)};
  for (const Page* page : list) {
    const int32_t begin = std::max(selection.begin - first_slot, 0);
    const int32_t end = std::min(selection.begin + selection.n - first_slot, page->count);
    first_slot += page->count;
    if (begin >= end) continue;
    bytes.resize(page->format->bytes());
    cache.backend.read(*page->format, page->data, bytes.data());
    const auto n = static_cast<size_t>(end - begin);
    if (out.k != nullptr) {
      decode_side(Side::kKeys, page->format->keys, cache.head_dim, bytes.data(), begin, end - begin,
                  out.k + done * dim);
    }
    if (out.v != nullptr) {
      decode_side(Side::kValues, page->format->values, cache.head_dim, bytes.data() + page->format->key_bytes(), begin,
                  end - begin, out.v + done * dim);
    }
    for (int32_t slot = begin; out.positions != nullptr && slot < end; ++slot) {
      out.positions[done + static_cast<size_t>(slot - begin)] = page->position(slot);
    }
    done += n;
  }
}

}  // namespace kvq
