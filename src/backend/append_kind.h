#pragma once

#include <cstdint>

namespace kvq {

/// Pages that an append writes.
enum class AppendKind : uint8_t {
  kAppend,  // those of the new tokens, and those to seal since they leave the newest `recent`
  kOpen,    // those of the new tokens, in FP16, and of few tokens those to seal as soon as the first of them arrives
  kSeal     // those that this left to seal: there are no new tokens
};

}  // namespace kvq
