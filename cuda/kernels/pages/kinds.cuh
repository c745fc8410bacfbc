// Page kinds that attention reads. A kind is a type with
//
//   kCode, kOrder       code type, and arrangement of queries for its keys; with kOrder.codes, keys have load_keys, and
//                       scales as integers or gains
//   score               scores of a page's keys
//   value_gains         factors on the weights of a page's values
//   add_values          weighted sums of a page's values, times 1 / code_scale(kCode) but for FP16
//
// known_codes.h lists the codes that have a kind.
#pragma once

#include "kernels/pages/float16.cuh"
#include "kernels/pages/gain_shape.cuh"
#include "kernels/pages/integer.cuh"
#include "kernels/pages/known_codes.h"
#include "kernels/pages/trellis.cuh"

#include <iterator>
#include <type_traits>
#include <utility>

namespace kvq::cuda {

template <PageKind First, PageKind... Rest>
struct KindList {
  /// Calls `act` with an instance of the type for `kind`.
  template <typename Do>
  __device__ __forceinline__ static void visit(CodeType kind, const Do& act) {
    if constexpr (sizeof...(Rest) == 0) {
      act(First{});
    } else if (kind == First::kCode) {
      act(First{});
    } else {
      KindList<Rest...>::visit(kind, act);
    }
  }

  __device__ __forceinline__ static bool has(CodeType kind) {
    return kind == First::kCode || (... || (kind == Rest::kCode));
  }

  /// Arrangement of queries for keys of a code type.
  __device__ __forceinline__ static KeyOrder order(CodeType keys) {
    KeyOrder order = First::kOrder;
    ((order = keys == Rest::kCode ? Rest::kOrder : order), ...);
    return order;
  }
};

/// List of the page kinds of some codes, followed by other kinds.
template <const auto& kCodes, typename Indices, PageKind... Rest>
struct ListOf;
template <const auto& kCodes, size_t... kI, PageKind... Rest>
struct ListOf<kCodes, std::index_sequence<kI...>, Rest...> {
  using Type = KindList<typename PageTypeOf<kCodes[kI]>::Type..., Rest...>;
};
template <const auto& kCodes, PageKind... Rest>
using KindsOf = typename ListOf<kCodes, std::make_index_sequence<std::size(kCodes)>, Rest...>::Type;

template <typename List>
struct GainKindsAnd;
template <PageKind... Kinds>
struct GainKindsAnd<KindList<Kinds...>> {
  using Type = KindsOf<kGainCodes, Kinds...>;
};

/// Kinds without gains.
using PlainKinds = KindsOf<kPlainCodes>;

/// Kinds with a specialized loop, tested in this order.
template <typename G>
using FastKinds = std::conditional_t<G::kGains, KindsOf<kGainCodes, Float16Page>, PlainKinds>;

/// All kinds that pages may have.
template <typename G>
using PageKinds = std::conditional_t<G::kGains, GainKindsAnd<PlainKinds>::Type, PlainKinds>;

/// Whether a loop supports masks. Most masked pages are newest pages in FP16: reusing the loop for FP16 pages saves
/// fetching instructions for a masked page alone.
template <typename K>
inline constexpr bool kMasks = !PageKind<K> || std::is_same_v<K, Float16Page>;

/// Handles pages of any kinds by branching on each side's format.
struct MixedPages {
  template <typename G>
  __device__ __forceinline__ static void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                               Scores<G::kTiles>& scores) {
    PageKinds<G>::visit(keys.layout.format.keys(), [&](auto kind) { kind.score(keys, queries, scores); });
  }

  template <typename G>
  __device__ __forceinline__ static auto value_gains(const PageSide<G>& values) {
    if constexpr (G::kGains) {
      const CodeType kind = values.layout.format.values();
      return kind.has_gains() ? load_value_gains(values, kind) : TokenGains{{1.0F, 1.0F, 1.0F, 1.0F}};
    } else {
      return NoGains{};
    }
  }

  template <typename G>
  __device__ __forceinline__ static void add_values(const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                    Outputs<G>& outputs) {
    PageKinds<G>::visit(values.layout.format.values(), [&](auto kind) { kind.add_values(values, p, outputs); });
  }
};

/// Arrangement of queries for keys of kind K, or of the kind `keys` if K is any.
template <typename K, typename G>
__device__ __forceinline__ KeyOrder key_order(CodeType keys) {
  if constexpr (PageKind<K>) {
    return K::kOrder;
  } else {
    return PageKinds<G>::order(keys);
  }
}

}  // namespace kvq::cuda
