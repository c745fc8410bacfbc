// Error of attention if one page of a text is stored in another format.
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

/// First page of a text that routers are trained on: earlier ones stay FP16.
inline constexpr int32_t kFirstRoutedPage = 1;

/// Tokens after a page that evaluate it: equal for every page of a text, because its last pages, seen by near queries
/// only, would seem to matter more than others.
constexpr int32_t judging_tokens(int32_t n) { return n / 4; }

/// Pages of a text of n tokens with enough tokens after them.
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

  /// ‖o' − o‖² / ‖o‖², summed over query heads and some queries after the page, where o is attention over FP16 pages
  /// and o' the same with one page stored by an expert: [routed_pages(n), units, experts]. The result does not depend
  /// on the number of threads.
  Vector<float> measure(int32_t layer, const RouterText& text);

 private:
  Allocator& allocator_;
  Parallel& parallel_;
  int32_t units_;  // separately counted votes: of all heads together, or of each
  size_t experts_;
  std::array<std::optional<Cache>, kMaxExperts + 1> caches_;  // of FP16, then of each other expert
};

}  // namespace kvq
