// How much attention suffers when one page of a text is stored in another format.
#pragma once

#include "cache/sequence.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "formats/router/router.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

namespace kvq {

/// Of each text routers are trained on the pages from this one on: the first stays FP16.
inline constexpr int32_t kFirstRoutedPage = 1;

/// How many tokens after a page judge it: as many for every page of a text, because the last pages of a text, which
/// only near queries have seen, would seem to matter more than others.
constexpr int32_t judging_tokens(int32_t n) { return n / 4; }

/// Pages of a text of n tokens that have as many tokens after them.
constexpr int32_t routed_pages(int32_t n) {
  const int32_t pages = (n - judging_tokens(n)) / kPageSlots;
  return pages > kFirstRoutedPage ? pages - kFirstRoutedPage : 0;
}

/// The shortest text with such a page.
inline constexpr int32_t kFewestRoutedTokens = 85;
static_assert(routed_pages(kFewestRoutedTokens) == 1 && routed_pages(kFewestRoutedTokens - 1) == 0);

/// One text of one layer: [n, heads, head_dim], before RoPE.
struct RouterText {
  const void* q;
  const void* k;
  const void* v;
  kvq_dtype dtype;
  int32_t n;
};

class PageErrors {
 public:
  /// \param options  what a cache of the model is made with
  /// \param policy   with the experts
  /// \param training  of the pages, if an expert needs it
  PageErrors(Allocator& allocator, Parallel& parallel, Backend& backend, const kvq_cache_options& options,
             const Policy& policy, const CacheTraining& training);

  /// Votes that are counted apart: of all heads together, or of each.
  int32_t units() const { return units_; }

  /// ‖o' − o‖² / ‖o‖², summed over query heads and some queries after the page, where o is attention over FP16 pages
  /// and o' the same with one page as an expert stores it: [routed_pages(n), units, experts]. The result does not
  /// depend on the number of threads.
  Vector<float> measure(int32_t layer, const RouterText& text);

 private:
  Allocator& allocator_;
  Parallel& parallel_;
  int32_t units_;
  size_t experts_;
  std::array<std::optional<Cache>, kMaxExperts + 1> caches_;  // of FP16, then of each expert that is something else
};

}  // namespace kvq
