#pragma once

#include "backend/cpu/append/kernels.h"
#include "backend/cpu/attend/commvq/kernels.h"
#include "backend/cpu/attend/gain_shape/kernels.h"
#include "backend/cpu/attend/kernels.h"
#include "backend/cpu/context_codec.h"
#include "backend/cpu/linear/kernels.h"
#include "formats/codec.h"

#include <array>

namespace kvq::cpu {

/// What there is for one kind of side. None of them: its pages need their layer's context.
struct SideKernels {
  EncodeKernel encode = nullptr;
  KeyKernel keys = nullptr;
  ValueKernel values = nullptr;
};

/// One instruction set's kernels.
struct KernelTable {
  const char* name;
  std::array<SideKernels, kKinds> sides;
  std::array<const ContextCodec*, kCodecs> contexts;  // by number; null: the codec's pages need no context
  SoftmaxKernel softmax;
  BlendKernel blend;
  CommvqKernels commvq;
  CentreKernels centres;
  const AppendKernels* append;
  const LinearKernels* linear;

  const SideKernels& side(Kind kind) const { return sides[index_of(kind)]; }
  SideKernels& side(Kind kind) { return sides[index_of(kind)]; }
  /// Whether pages of this kind need their layer's context.
  bool needs_context(Kind kind) const { return side(kind).encode == nullptr; }
  /// For pages of a layer; null if they need no context.
  const ContextCodec* codec(const LayerContext* context) const {
    return context != nullptr ? contexts[context->codec.number] : nullptr;
  }
};

}  // namespace kvq::cpu
