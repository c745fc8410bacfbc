#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace kvq {

/// Most numbers of a caller's array: so few that 8 bytes for each have addresses, 2^28 where these have 32 bits.
inline constexpr int64_t kMostNumbers = PTRDIFF_MAX / 8 + 1;

/// Throw KVQ_E_LIMIT: the product of these is no size_t.
[[noreturn]] void refuse_size(std::initializer_list<uint64_t> factors);

/// The product of counts, which are not negative, as size_t. Throws KVQ_E_LIMIT where that is too small for it, as it
/// may be with addresses of 32 bits.
template <std::integral... Counts>
constexpr size_t size(Counts... counts) {
  size_t product = 1;
  if ((__builtin_mul_overflow(product, counts, &product) || ...)) refuse_size({static_cast<uint64_t>(counts)...});
  return product;
}

}  // namespace kvq
