#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kvq.hpp"

namespace llama {

/// How a cache stores pages. All may be null, and are only needed while a cache is made.
struct CacheFormat {
  CacheFormat(const kvq_policy* of_pages = nullptr, const kvq_codebook* of_codes = nullptr,
              const kvq_router* that_chooses = nullptr, const kvq_centres* around = nullptr)
      : policy(of_pages), codebook(of_codes), router(that_chooses), centres(around) {}

  const kvq_policy* policy;
  const kvq_codebook* codebook;
  const kvq_router* router;
  const kvq_centres* centres;
  double kept_share = 0.0;  // of a prompt's tokens, when it is compressed; 0: as many as the policy says
};

/// Tokens that stay of each KV head, on average, where `share` of a prompt is kept: at least the window, which always
/// stays.
inline int32_t budget_of_share(double share, int32_t prompt, int32_t window) {
  return std::max(static_cast<int32_t>(std::lround(share * prompt)), window);
}

inline kvq::Cache make_cache(kvq_context* context, kvq_cache_options options, const CacheFormat& format) {
  options.codebook = format.codebook;
  options.router = format.router;
  options.centres = format.centres;
  return kvq::Cache(context, options, format.policy);
}

}  // namespace llama
