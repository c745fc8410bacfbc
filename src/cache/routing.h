// Which format each page is sealed in where a router chooses.
#pragma once

#include "cache/backend_memory.h"
#include "cache/sequence.h"

#include <span>

namespace kvq {

/// A page that is about to be sealed.
struct FullPage {
  int32_t head;
  int32_t index;  // in the head's list
  PageToRoute page;
};

/// The formats of pages of one layer, head by head and each head's in their order. Where all heads have the same tokens
/// in their pages and the policy lets a layer vote, they choose together.
///
/// \param deciding  [kv_heads] lists of the layer whose router decides; not looked at if that is `layer` itself. Others
///                  need only the pages' positions, not what is in them.
/// \param formats   [pages] receives them
void choose_formats(const Sequence& sequence, int32_t layer, std::span<const FullPage> pages,
                    std::span<const Sequence::PageList* const> deciding, std::span<const PageFormat*> formats);

/// The pages of a layer that an append seals, in the order that it makes them in.
class RoutedPages {
 public:
  RoutedPages(Sequence& sequence, int32_t layer);

  /// A page of `old`, if it is there, and the tokens at `positions`, of which the append's token `token` is the first.
  void add(int32_t head, int32_t index, const Page* old, int32_t token, std::span<const int32_t> positions);
  /// Choose the formats of all pages added. The layer is to have `length` tokens. Nothing changes but memory of this
  /// object; throws what appending would if tokens cannot be stored.
  void choose(const TokenBatch& tokens, int32_t length);

  struct Choice {
    const PageFormat* format;
    const std::byte* staged;  // the full page in FP16, or null if it has to be put together still
    int32_t alike;            // pages of this format that the append makes from here on, of the same list
  };
  /// Of the pages in the order in which they were added.
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
