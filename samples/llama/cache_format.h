#pragma once

#include "kvq.hpp"

namespace llama {

/// How a cache stores pages. All may be null, and are only needed while a cache is made.
struct CacheFormat {
  CacheFormat(const kvq_policy* of_pages = nullptr, const kvq_codebook* of_codes = nullptr,
              const kvq_router* that_chooses = nullptr)
      : policy(of_pages), codebook(of_codes), router(that_chooses) {}

  const kvq_policy* policy;
  const kvq_codebook* codebook;
  const kvq_router* router;
};

inline kvq::Cache make_cache(kvq_context* context, kvq_cache_options options, const CacheFormat& format) {
  options.codebook = format.codebook;
  options.router = format.router;
  return kvq::Cache(context, options, format.policy);
}

}  // namespace llama
