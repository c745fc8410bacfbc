// Host data of codebooks for encoding and attending: what all caches that use them share, and that beside the bytes of
// one layer's pages.
#pragma once

#include "core/resident.h"
#include "core/rotation_table.h"
#include "formats/codec.h"
#include "formats/commvq/key_encoder.h"
#include "formats/commvq/key_lookup.h"
#include "formats/commvq/model_codebook.h"
#include "formats/commvq/options.h"
#include "formats/commvq/value_encoder.h"

#include <memory>

namespace kvq {

struct LayerCoder {
  LayerCoder(Allocator& allocator, Parallel& parallel, const CodebookShape& shape, const LayerCodebook& numbers);

  /// Encoder of one group of a head.
  const KeyEncoder& key_encoder(int32_t head, int32_t group) const {
    return keys[static_cast<size_t>(head * shape.groups() + group)];
  }

  const CodebookShape& shape;
  const LayerCodebook& numbers;
  Vector<KeyEncoder> keys;      // [kv_heads][groups], or empty
  Vector<KeyLookup> lookups;    // [kv_heads], or empty if the shape has no tables
  Vector<ValueEncoder> values;  // [vectors], or empty
};

class ModelCoder final : public Resident {
 public:
  /// `codebook` is complete.
  ModelCoder(Allocator& allocator, Parallel& parallel, std::shared_ptr<const ModelCodebook> codebook);

  const LayerCoder& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }

 private:
  std::shared_ptr<const ModelCodebook> codebook_;
  Vector<LayerCoder> layers_;
};

namespace commvq {

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

}  // namespace commvq
}  // namespace kvq
