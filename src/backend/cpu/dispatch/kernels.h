#pragma once

#include "backend/cpu/append/kernels.h"
#include "backend/cpu/attend/commvq/kernels.h"
#include "backend/cpu/attend/gain_shape/kernels.h"
#include "backend/cpu/attend/kernels.h"
#include "backend/cpu/context_codec.h"
#include "backend/cpu/linear/kernels.h"
#include "formats/codec.h"

#include <array>
#include <span>

namespace kvq::cpu {

/// Kernels of one code type. All null: its pages need their layer's context.
struct SideKernels {
  EncodeKernel encode = nullptr;
  RoomKernel room_bytes = nullptr;  // for `encode`; null: it needs no room
  KeyKernel keys = nullptr;
  ValueKernel values = nullptr;
  AsKeysKernel as_keys = nullptr;
  CodeType keys_code{};  // that `as_keys` writes
};

struct CodeKernels {
  CodeType code;
  SideKernels kernels;
};

/// Kernels that a codec registers.
struct CodecKernels {
  std::span<const CodeKernels> codes;
  CentreKernels centres{};  // if pages may have trained centres
};

/// One instruction set's kernels.
struct KernelTable {
  const char* name;
  std::array<SideKernels, size_t{1} << CodeType::kPackedBits> sides{};  // by packed code type
  std::array<const ContextCodec*, kMaxCodecs> contexts{};               // by number; null: pages need no context
  SoftmaxKernel softmax;
  BlendKernel blend;
  CommvqKernels commvq;
  CentreKernels centres;
  const AppendKernels* append;
  const LinearKernels* linear;

  /// For codes, without contributions of centres.
  const SideKernels& plain(CodeType code) const { return sides[code.packed()]; }
  SideKernels& plain(CodeType code) { return sides[code.packed()]; }
  const SideKernels& side(const SideFormat& format) const {
    return format.has_trained_centres() ? kNeedsContext : plain(format.code);
  }
  /// For pages of a layer; null if they need no context.
  const ContextCodec* codec(const LayerContext* context) const {
    return context != nullptr ? contexts[context->codec.number] : nullptr;
  }

 private:
  static constexpr SideKernels kNeedsContext{};
};

}  // namespace kvq::cpu
