// What caches need of codebooks to encode: made once for all caches that use them.
#pragma once

#include "formats/commvq/key_encoder.h"
#include "formats/commvq/key_lookup.h"
#include "formats/commvq/model_codebook.h"
#include "formats/commvq/value_encoder.h"

#include <memory>

namespace kvq {

struct LayerCoder {
  LayerCoder(Allocator& allocator, Parallel& parallel, const CodebookShape& shape, const LayerCodebook& numbers);

  /// Of one group of a head.
  const KeyEncoder& key_encoder(int32_t head, int32_t group) const {
    return keys[static_cast<size_t>(head * shape.groups() + group)];
  }

  const CodebookShape& shape;
  const LayerCodebook& numbers;
  Vector<KeyEncoder> keys;      // [kv_heads][groups], or empty
  Vector<KeyLookup> lookups;    // [kv_heads], or empty: not of such codes
  Vector<ValueEncoder> values;  // [vectors], or empty
};

class ModelCoder {
 public:
  /// `codebook` is complete.
  ModelCoder(Allocator& allocator, Parallel& parallel, std::shared_ptr<const ModelCodebook> codebook);

  const ModelCodebook& codebook() const { return *codebook_; }
  const LayerCoder& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  /// Of the shape and all numbers: finds out whether pages were made with the same ones.
  uint32_t checksum() const { return checksum_; }

 private:
  std::shared_ptr<const ModelCodebook> codebook_;
  Vector<LayerCoder> layers_;
  uint32_t checksum_;
};

}  // namespace kvq
