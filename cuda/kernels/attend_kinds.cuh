// The kinds of pages that attention reads. A kind is a type with
//
//   kKind, kOrder       which kind, and how its keys meet queries
//   score               scores of a page's keys
//   add_values          weighted sums of a page's values
//
// and becomes known to the kernel by its place in PageKinds.
#pragma once

#include "kernels/attend_float16.cuh"
#include "kernels/attend_int2.cuh"
#include "kernels/attend_int3.cuh"
#include "kernels/attend_int4.cuh"
#include "kernels/attend_int8.cuh"

namespace kvq::cuda {

template <PageKind First, PageKind... Rest>
struct KindList {
  /// Call `act` with a value of the type that stands for `kind`.
  template <typename Do>
  __device__ __forceinline__ static void visit(Kind kind, const Do& act) {
    if constexpr (sizeof...(Rest) == 0) {
      act(First{});
    } else if (kind == First::kKind) {
      act(First{});
    } else {
      KindList<Rest...>::visit(kind, act);
    }
  }

  /// How keys meet queries.
  __device__ __forceinline__ static KeyOrder order(Kind keys) {
    KeyOrder order = First::kOrder;
    ((order = keys == Rest::kKind ? Rest::kOrder : order), ...);
    return order;
  }
};

/// Their loops are compiled in this order, which is the order in which a page's kind is looked for.
using PageKinds = KindList<Int4Page, Int2Page, Int8Page, Int3Page, Float16Page>;

/// Stands for pages of any kinds: each side is told by its format.
struct MixedPages {
  template <typename G>
  __device__ __forceinline__ static void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                               Scores<G::kTiles>& scores) {
    PageKinds::visit(keys.layout.format.keys(), [&](auto kind) { kind.score(keys, queries, scores); });
  }

  template <typename G>
  __device__ __forceinline__ static void add_values(const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                    Outputs<G>& outputs) {
    PageKinds::visit(values.layout.format.values(), [&](auto kind) { kind.add_values(values, p, outputs); });
  }
};

/// How keys of kind K, or of the kind that `keys` says, meet queries.
template <typename K>
__device__ __forceinline__ KeyOrder key_order(Kind keys) {
  if constexpr (PageKind<K>) {
    return K::kOrder;
  } else {
    return PageKinds::order(keys);
  }
}

}  // namespace kvq::cuda
