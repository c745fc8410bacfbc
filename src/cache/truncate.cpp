#include "cache/sequence.h"
#include "core/error.h"

#include <algorithm>

namespace kvq {
namespace {

/// Where a cut falls in one head's list.
struct Cut {
  size_t whole_pages;  // kept as they are
  int32_t slots;       // kept of the page after them
};

Cut find_cut(const Sequence::PageList& list, int32_t length) {
  Cut cut{0, length};
  while (cut.whole_pages < list.size() && list[cut.whole_pages]->count <= cut.slots) {
    cut.slots -= list[cut.whole_pages]->count;
    ++cut.whole_pages;
  }
  return cut;
}

void check_cut(const Sequence& sequence, int32_t layer, int32_t length) {
  if (length > sequence.length(layer)) {
    fail(KVQ_E_ARGUMENT, "length is %d, but layer %d holds %d tokens", length, layer, sequence.length(layer));
  }
  for (int32_t head = 0; head < sequence.cache.kv_heads; ++head) {
    const Sequence::PageList& list = sequence.list(layer, head);
    const Cut cut = find_cut(list, length);
    if (cut.slots == 0 || list[cut.whole_pages]->is_float16()) continue;
    const int32_t before = length - cut.slots;
    fail(KVQ_E_STATE, "length is %d, inside a sealed page of layer %d: the nearest lengths that work are %d and %d",
         length, layer, before, before + list[cut.whole_pages]->count);
  }
}

/// Copies of shared FP16 pages that a cut falls into, made before anything changes.
class Copies {
 public:
  explicit Copies(Cache& cache) : cache_(cache), pages_(StlAllocator<Page*>(cache.allocator)) {}
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  ~Copies() {
    for (size_t i = taken_; i < pages_.size(); ++i) cache_.release(pages_[i]);
  }

  void add(const Page& original, int32_t slots) {
    pages_.reserve(pages_.size() + 1);
    Page* copy = cache_.make_page(original.format, original.positions != nullptr);
    pages_.push_back(copy);
    copy->first_position = original.first_position;
    if (copy->positions != nullptr) std::copy_n(original.positions, kPageSlots, copy->positions);
    const PageWrite write{original.data, slots, 0, 0, 0, copy->data, original.format, 0, 0, nullptr};
    const TokenBatch none{nullptr,         nullptr,      KVQ_F32, 0,     cache_.kv_heads,
                          cache_.head_dim, &cache_.rope, {},      false, false};
    cache_.backend.append(none, {&write, 1}, nullptr, cache_.allocator);
  }

  Page* take() noexcept { return pages_[taken_++]; }

 private:
  Cache& cache_;
  Vector<Page*> pages_;
  size_t taken_ = 0;
};

bool needs_copy(const Sequence::PageList& list, const Cut& cut) {
  return cut.slots > 0 && list[cut.whole_pages]->is_shared();
}

void apply_cut(Cache& cache, Sequence::PageList& list, int32_t length, Copies& copies) noexcept {
  const Cut cut = find_cut(list, length);
  if (needs_copy(list, cut)) {
    cache.release(list[cut.whole_pages]);
    list[cut.whole_pages] = copies.take();
  }
  if (cut.slots > 0) cache.set_count(list[cut.whole_pages], cut.slots);
  const size_t kept = cut.whole_pages + (cut.slots > 0 ? 1 : 0);
  for (size_t i = kept; i < list.size(); ++i) cache.release(list[i]);
  list.resize(kept);
}

}  // namespace

void truncate(Sequence& sequence, int32_t length) {
  Cache& cache = sequence.cache;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) check_cut(sequence, layer, length);
  Copies copies(cache);
  for (const Sequence::PageList& list : sequence.lists) {
    const Cut cut = find_cut(list, length);
    if (needs_copy(list, cut)) copies.add(*list[cut.whole_pages], cut.slots);
  }
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    int32_t last = -1;
    for (int32_t head = 0; head < cache.kv_heads; ++head) {
      Sequence::PageList& list = sequence.list(layer, head);
      apply_cut(cache, list, length, copies);
      if (LayerMirror* mirror = sequence.mirror(layer)) {
        mirror->invalidate(head, std::max(static_cast<int32_t>(list.size()) - 1, 0));
      }
      if (!list.empty()) last = std::max(last, list.back()->last_position());
    }
    sequence.layers[static_cast<size_t>(layer)] = {length, last};
  }
}

}  // namespace kvq
