#include "backend/cpu/context_codec.h"

#include "backend/cpu/attend/attend.h"
#include "backend/cpu/attend/commvq/rebuild.h"
#include "backend/cpu/attend/commvq/tables.h"
#include "formats/commvq/commvq.h"

#include <array>

namespace kvq::cpu {
namespace {

// Paths of attention.
constexpr int32_t kRebuild = 0;
constexpr int32_t kTables = 1;

/// Places an attention and its work space in one block.
template <typename Attention>
ContextAttention* make(const ContextItem& item, std::byte* work) {
  MemoryCutter memory(work);
  auto* place = memory.take<Attention>(1);
  const typename Attention::Work arrays(item.batch, memory);
  return std::construct_at(place, CommvqItem(item), arrays);
}

template <typename Attention>
size_t bytes(const AttendBatch& batch) {
  MemoryCutter memory(nullptr);
  memory.take<Attention>(1);
  static_cast<void>(typename Attention::Work(batch, memory));
  return memory.used();
}

class CommvqCodec final : public ContextCodec {
 public:
  const Codec& codec() const override { return commvq::kCodec; }

  void encode(const TokenBatch& tokens, std::span<const FilledGroup> groups, const KernelTable& /*kernels*/,
              Parallel& parallel, Allocator& scratch) const override {
    encode_commvq(tokens, groups, parallel, scratch);
  }

  uint64_t encode_bytes(const TokenBatch& tokens, uint64_t groups, uint64_t members, const KernelTable& /*kernels*/,
                        const Parallel& parallel) const override {
    return encode_commvq_bytes(tokens, groups, members, parallel);
  }

  ContextPath choose_path(const AttendBatch& batch, const KernelTable& kernels, int32_t rows) const override {
    const AttentionPath path = commvq::context_of(*batch.context).path;
    const bool tables = path == AttentionPath::kTables ||
                        (path == AttentionPath::kAuto && TableAttention::is_faster(batch, kernels, rows));
    return {.path = tables ? kTables : kRebuild,
            .item_rows = tables ? TableAttention::kRows : kItemRows,
            .work_bytes = tables ? bytes<TableAttention>(batch) : bytes<RebuildAttention>(batch)};
  }

  size_t sum_floats(const LayerContext& context) const override {
    return BitSums::of(commvq::context_of(context)).width();
  }

  bool reads_other_heads(const LayerContext& context) const override {
    return sum_floats(context) > 0 && commvq::context_of(context).shape().values.scope == Scope::kLayer;
  }

  ContextAttentionPointer attend(const ContextItem& item, int32_t path, std::byte* work) const override {
    return ContextAttentionPointer(path == kTables ? make<TableAttention>(item, work)
                                                   : make<RebuildAttention>(item, work));
  }

  void add_sums(const LayerContext& layer, const KernelTable& kernels, int32_t head, int32_t rows, const float* sums,
                float* out) const override;
};

/// Decodes the sums.
void CommvqCodec::add_sums(const LayerContext& layer, const KernelTable& kernels, int32_t head, int32_t rows,
                           const float* sums, float* out) const {
  const commvq::Context& context = commvq::context_of(layer);
  const CodebookShape& shape = context.shape();
  const BitSums layout = BitSums::of(context);
  const bool of_layer = shape.values.scope == Scope::kLayer;
  const ValueCode code = value_code(shape, context.coder.numbers, of_layer ? 0 : head);
  const size_t first = of_layer ? static_cast<size_t>(head) * static_cast<size_t>(shape.head_dim) : 0;
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kBlockRows * kMaxHeadDim)> decoded{};
  for (int32_t r = 0; r < rows; ++r) {
    const float total = sums[static_cast<size_t>(r) * layout.width() + layout.total()];
    float* row = decoded.data() + static_cast<ptrdiff_t>(r) * kMaxHeadDim;
    for (int32_t channel = 0; channel < shape.head_dim; ++channel) {
      row[channel] = total * code.offset[first + static_cast<size_t>(channel)];
    }
  }
  kernels.commvq.multiply(code.codes.data() + first, static_cast<size_t>(code.width), code.bits, shape.head_dim, rows,
                          sums, layout.width(), decoded.data());
  for (int32_t r = 0; r < rows; ++r) {
    const float* row = decoded.data() + static_cast<ptrdiff_t>(r) * kMaxHeadDim;
    for (int32_t channel = 0; channel < shape.head_dim; ++channel) {
      out[r * kMaxHeadDim + channel] += row[channel] * code.channel_scale[first + static_cast<size_t>(channel)];
    }
  }
}

}  // namespace

const ContextCodec& commvq_codec() {
  static const CommvqCodec kCodec;
  return kCodec;
}

}  // namespace kvq::cpu
