#pragma once

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
};

inline kvq::Cache make_cache(kvq_context* context, kvq_cache_options options, const CacheFormat& format) {
  options.codebook = format.codebook;
  options.router = format.router;
  options.centres = format.centres;
  return kvq::Cache(context, options, format.policy);
}

}  // namespace llama
