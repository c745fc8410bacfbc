// Codebooks of CommVQ in device memory.
#pragma once

#include "core/resident.h"
#include "core/rotation_table.h"
#include "device/device_arrays.h"
#include "formats/codec.h"
#include "formats/commvq/model_codebook.h"
#include "formats/commvq/options.h"
#include "kernels/commvq/attend.h"

#include <memory>

namespace kvq::cuda {

/// A codebook in device memory, for all caches with it.
class DeviceCodebook final : public Resident {
 public:
  /// Throws KVQ_E_UNSUPPORTED if codes are longer than kernels search for.
  DeviceCodebook(Device& device, Allocator& allocator, std::shared_ptr<const ModelCodebook> codebook);

  /// A layer's tables without what its context adds.
  const CodebookTables& tables(int32_t layer) const { return layers_[static_cast<size_t>(layer)].tables; }
  const KeyBytes& key_bytes(int32_t layer) const { return layers_[static_cast<size_t>(layer)].key_bytes; }

 private:
  struct Layer {
    DeviceArrays arrays;
    CodebookTables tables;
    KeyBytes key_bytes;
  };
  Layer make_layer(Device& device, Allocator& allocator, const LayerCodebook& numbers) const;

  std::shared_ptr<const ModelCodebook> codebook_;
  Vector<Layer> layers_;
};

/// A layer's codes, and how a cache rotates keys and searches for codes. The resident outlives it.
class CodebookContext final : public LayerContext {
 public:
  CodebookContext(Device& device, Allocator& allocator, const Codec& codec_, const DeviceCodebook& codebook,
                  int32_t layer, const OptionValues& options, const RotationTable& rotations);

  const CodebookTables& tables() const { return tables_; }
  const KeyBytes& key_bytes() const { return key_bytes_; }
  const CodingEffort& effort() const { return effort_; }

 private:
  DeviceArrays arrays_;
  CodebookTables tables_;
  KeyBytes key_bytes_;
  CodingEffort effort_;
};

/// The context of a layer whose pages may have CommVQ codes.
inline const CodebookContext& codebook_context(const LayerContext* context) {
  return *static_cast<const CodebookContext*>(context);
}

}  // namespace kvq::cuda
