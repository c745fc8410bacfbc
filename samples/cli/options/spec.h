#pragma once

#include <string>

#include "llama/cache_format.h"

namespace cli {

inline constexpr const char* kSpecHelp =
    "KV format: fp16, int8, int4, int3 or int2, optionally with +hadamard (the newest page of 32 tokens "
    "stays FP16); commvq:FILE with a file of codebooks; moqae:FILE with a file of routers, followed by @FILE if they "
    "choose commvq; or a policy file (YAML), followed by @FILE for codebooks and routers that it needs; each with "
    "+METHOD:BUDGET to evict tokens after the prompt (streaming, h2o, snapkv, pyramid, adasnap, adapyramid)";

/// What a SPEC stands for.
struct Spec {
  kvq::Policy policy = nullptr;
  kvq::Codebook codebook = nullptr;
  kvq::Router router = nullptr;

  operator llama::CacheFormat() const { return {policy, codebook, router}; }
  bool evicts() const { return policy.describe().eviction_budget > 0; }
};

/// The contents of the policy file of that name if there is one, else the library's short form. A UsageError names
/// `option`.
Spec load_spec(kvq_context* context, const std::string& spec, const std::string& option = "--kv");

}  // namespace cli
