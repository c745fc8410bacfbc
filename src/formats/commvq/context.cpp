#include "formats/commvq/context.h"

#include "formats/commvq/commvq.h"

namespace kvq {

LayerCoder::LayerCoder(Allocator& allocator, Parallel& parallel, const CodebookShape& shape_,
                       const LayerCodebook& numbers_)
    : shape(shape_), numbers(numbers_), keys(allocator), lookups(allocator), values(allocator) {
  if (shape.keys.stages > 0) {
    const auto parts = static_cast<size_t>(shape.kv_heads * shape.groups());
    const size_t floats = numbers.key_codes.size() / parts;
    keys.reserve(parts);
    for (size_t i = 0; i < parts; ++i) {
      keys.emplace_back(allocator, shape.keys.stages, shape.keys.codes, shape.keys.group,
                        std::span<const float>(numbers.key_codes).subspan(i * floats, floats));
    }
  }
  if (KeyLookup::fits(shape)) {
    lookups.reserve(static_cast<size_t>(shape.kv_heads));
    for (int32_t head = 0; head < shape.kv_heads; ++head) lookups.emplace_back(allocator, shape, numbers, head);
  }
  if (shape.values.bits > 0) {
    values.reserve(static_cast<size_t>(shape.vectors()));
    for (int32_t vector = 0; vector < shape.vectors(); ++vector) {
      values.emplace_back(allocator, parallel, value_code(shape, numbers, vector));
    }
  }
}

ModelCoder::ModelCoder(Allocator& allocator, Parallel& parallel, std::shared_ptr<const ModelCodebook> codebook)
    : codebook_(std::move(codebook)), layers_(allocator) {
  const CodebookShape& shape = codebook_->shape;
  layers_.reserve(static_cast<size_t>(shape.n_layers));
  for (const ModelCodebook::Layer& layer : codebook_->layers) {
    layers_.emplace_back(allocator, parallel, shape, *layer.numbers);
  }
}

commvq::Context::Context(const LayerCoder& coder_, const PageFormat& format, const OptionValues& options,
                         const RotationTable& rotations_)
    : LayerContext(kCodec),
      coder(coder_),
      rotations(rotations_),
      effort{.beam = options[kBeam], .flips = options[kFlips]},
      path(static_cast<AttentionPath>(options[kAttention])),
      values(format.values.code.is_commvq()) {}

}  // namespace kvq
