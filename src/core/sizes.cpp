#include "core/sizes.h"

#include "core/error.h"

#include <climits>
#include <cstdio>

namespace kvq {

void refuse_size(std::initializer_list<uint64_t> factors) {
  char product[160] = "";
  size_t used = 0;
  for (const uint64_t factor : factors) {
    const int length = std::snprintf(product + used, sizeof(product) - used, "%s%llu", used == 0 ? "" : " by ",
                                     static_cast<unsigned long long>(factor));
    if (length < 0 || static_cast<size_t>(length) >= sizeof(product) - used) break;
    used += static_cast<size_t>(length);
  }
  fail(KVQ_E_LIMIT, "a size of %s is more than addresses of %zu bits count", product, sizeof(size_t) * CHAR_BIT);
}

}  // namespace kvq
