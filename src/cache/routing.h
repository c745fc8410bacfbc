// Routers choose the format in which each page is sealed.
#pragma once

#include "cache/backend_memory.h"
#include "cache/sequence.h"

#include <span>

namespace kvq {

/// Full page to be sealed.
struct FullPage {
  int32_t head;
  int32_t index;  // in the head's list
  PageToRoute page;
};

/// Choose the formats of one layer's pages, given head by head in order. Heads with the same tokens in their pages
/// choose together if the policy lets the layer vote.
///
/// \param deciding  [kv_heads] lists of the deciding layer, ignored if that is `layer` itself. Other layers need only
///                  the pages' positions, not their contents.
/// \param formats   [pages] receives them
void choose_formats(const Sequence& sequence, int32_t layer, std::span<const FullPage> pages,
                    std::span<const Sequence::PageList* const> deciding, std::span<const PageFormat*> formats);

/// Pages of a layer sealed by an append, in the order that it makes them.
class RoutedPages {
 public:
  RoutedPages(Sequence& sequence, int32_t layer);

  /// Add a page: the slots of `old`, if any, and the tokens at `positions` from the append's token `token` on.
  void add(int32_t head, int32_t index, const Page* old, int32_t token, std::span<const int32_t> positions);
  /// Choose the formats of all added pages. The layer will have `length` tokens. Changes this object only; throws as
  /// appending would if tokens cannot be stored.
  void choose(const TokenBatch& tokens, int32_t length);

  struct Choice {
    const PageFormat* format;
    const std::byte* staged;  // full page in FP16, or null if not assembled
    int32_t alike;            // pages of this format that the append makes from here on in the same list
  };
  /// Choice of the next page, in the order added.
  Choice next();

 private:
  void stage(const TokenBatch& tokens);

  Sequence& sequence_;
  Cache& cache_;
  int32_t layer_;
  Vector<FullPage> pages_;
  Vector<bool> is_put_together_;  // [pages_] from tokens that arrive
  Vector<PageWrite> staged_;      // of those, to memory_
  BackendMemory memory_;
  Vector<const PageFormat*> formats_;
  size_t taken_ = 0;
};

}  // namespace kvq
