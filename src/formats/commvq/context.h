// Data beside the bytes of one layer's CommVQ pages, on the host.
#pragma once

#include "core/rotation_table.h"
#include "formats/codec.h"
#include "formats/commvq/model_coder.h"
#include "formats/commvq/options.h"

namespace kvq::commvq {

/// Policy options, in order.
enum Option : uint8_t { kBeam, kFlips, kAttention };

struct Context final : LayerContext {
  Context(const LayerCoder& coder_, const PageFormat& format, const OptionValues& options,
          const RotationTable& rotations_);

  const CodebookShape& shape() const { return coder.shape; }

  const LayerCoder& coder;
  const RotationTable& rotations;
  CodingEffort effort;
  AttentionPath path;
  bool values;  // pages have codes for values
};

inline const Context& context_of(const LayerContext& context) { return static_cast<const Context&>(context); }

}  // namespace kvq::commvq
