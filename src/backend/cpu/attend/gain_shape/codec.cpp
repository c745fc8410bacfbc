#include "backend/cpu/context_codec.h"

#include "backend/cpu/attend/attend.h"
#include "backend/cpu/attend/gain_shape/centred.h"
#include "formats/gain_shape/gain_shape.h"

namespace kvq::cpu {
namespace {

class CentredCodec final : public ContextCodec {
 public:
  const Codec& codec() const override { return gain_shape::kCodec; }

  void complete(Allocator& allocator, const KernelTable& kernels, LayerContext& context) const override {
    if (kernels.centres.next_rotation != nullptr) static_cast<centred::Context&>(context).rotate_centres(allocator);
  }

  void encode(const TokenBatch& tokens, std::span<const FilledGroup> groups, const KernelTable& kernels,
              Parallel& parallel, Allocator& scratch) const override {
    encode_centred(tokens, groups, kernels, parallel, scratch);
  }

  uint64_t encode_bytes(const TokenBatch& tokens, uint64_t groups, uint64_t members, const KernelTable& kernels,
                        const Parallel& parallel) const override {
    return encode_centred_bytes(tokens.head.largest(), groups * members, kernels, parallel);
  }

  ContextPath choose_path(const AttendBatch& batch, const KernelTable& /*kernels*/, int32_t /*rows*/) const override {
    MemoryCutter memory(nullptr);
    memory.take<CentredAttention>(1);
    static_cast<void>(CentredAttention::Work(batch, memory));
    return {.path = 0, .item_rows = kItemRows, .work_bytes = memory.used()};
  }

  size_t sum_floats(const LayerContext& context) const override {
    return CentredAttention::sum_floats(centred::context_of(context));
  }

  bool reads_other_heads(const LayerContext& /*context*/) const override { return false; }

  ContextAttentionPointer attend(const ContextItem& item, int32_t /*path*/, std::byte* work) const override {
    MemoryCutter memory(work);
    auto* place = memory.take<CentredAttention>(1);
    const CentredAttention::Work arrays(item.batch, memory);
    return ContextAttentionPointer(std::construct_at(place, item, arrays));
  }

  void add_sums(const LayerContext& layer, const KernelTable& kernels, int32_t head, int32_t rows, const float* sums,
                float* out) const override {
    const centred::Context& context = centred::context_of(layer);
    const CentresShape& shape = context.shape();
    kernels.commvq.multiply(context.centre(Side::kValues, head, 0), static_cast<size_t>(shape.head_dim),
                            shape.value_centres, shape.head_dim, rows, sums, sum_floats(layer), out);
  }
};

}  // namespace

const ContextCodec& centred_codec() {
  static const CentredCodec kCodec;
  return kCodec;
}

}  // namespace kvq::cpu
