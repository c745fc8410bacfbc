#pragma once

#include <string>

#include "llama/handles.h"

namespace cli {

inline constexpr const char* kSpecHelp =
    "KV format: fp16, int8, int4, int3 or int2, optionally with +hadamard (the newest page of 32 tokens "
    "stays FP16), or a policy file (YAML)";

/** The policy a SPEC stands for: the contents of the file of that name if there is one, else the library's short form.
 */
llama::PolicyHandle load_spec(kvq_context* context, const std::string& spec);

}  // namespace cli
