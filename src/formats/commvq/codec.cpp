// CommVQ's requirements on a cache, and its data for one.
#include "core/checks.h"
#include "core/error.h"
#include "formats/commvq/commvq.h"
#include "formats/commvq/context.h"

namespace kvq::commvq {
namespace {

/// A page with codes must fit in buffers sized for one without.
void check_side_bytes(Side side, const PageFormat& format) {
  const size_t bytes = side_bytes(side, format);
  const size_t plain = side_bytes(side, {SideFormat{}, SideFormat{}, format.head_dim});
  if (bytes <= plain) return;
  fail(KVQ_E_ARGUMENT, "options->codebook needs %zu bytes for the %s of a page, more than the %zu that FP16 needs",
       bytes, side == Side::kKeys ? "keys" : "values", plain);
}

}  // namespace

void check(const Trained& trained, const CacheShape& cache, const PageFormat& format) {
  const auto& codebook = static_cast<const ModelCodebook&>(trained);
  const CodebookShape& shape = codebook.shape;
  if (!codebook.complete()) {
    fail(KVQ_E_ARGUMENT, "options->codebook has %d of %d layers: finish its training", codebook.layers_present(),
         shape.n_layers);
  }
  check_trained_for("codebook", "n_layers", shape.n_layers, cache.n_layers);
  check_trained_for("codebook", "kv_heads", shape.kv_heads, cache.kv_heads);
  check_trained_for("codebook", "head_dim", shape.head_dim, cache.head_dim);
  check_trained_for_model("codebook", codebook.model_id, cache.model_id);
  if (format.keys.code.is_commvq()) {
    if (shape.keys.stages == 0)
      fail(KVQ_E_ARGUMENT, "policy stores keys as commvq, but options->codebook has no codes for keys");
    check_trained_for("codebook", "rope", shape.pairing, cache.rope);
    if (cache.rotary_dim != 0 && cache.rotary_dim != cache.head_dim) {
      fail(KVQ_E_ARGUMENT, "options->rotary_dim is %d: keys as commvq need all %d channels rotated", cache.rotary_dim,
           cache.head_dim);
    }
  }
  if (format.values.code.is_commvq() && shape.values.bits == 0) {
    fail(KVQ_E_ARGUMENT, "policy stores values as commvq, but options->codebook has no codes for values");
  }
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (format.side(side).code.is_commvq()) check_side_bytes(side, format);
  }
}

std::shared_ptr<const Resident> make_resident(Allocator& allocator, Parallel& parallel,
                                              std::shared_ptr<const Trained> codebook) {
  return std::allocate_shared<const ModelCoder>(StlAllocator<ModelCoder>(allocator), allocator, parallel,
                                                std::static_pointer_cast<const ModelCodebook>(std::move(codebook)));
}

Owned<LayerContext> make_context(Allocator& allocator, const Resident& resident, int32_t layer,
                                 const PageFormat& format, const OptionValues& options,
                                 const RotationTable& rotations) {
  return make_owned<Context>(allocator, static_cast<const ModelCoder&>(resident).layer(layer), format, options,
                             rotations);
}

Context::Context(const LayerCoder& coder_, const PageFormat& format, const OptionValues& options,
                 const RotationTable& rotations_)
    : LayerContext(kCodec),
      coder(coder_),
      rotations(rotations_),
      effort{.beam = options[kBeam], .flips = options[kFlips]},
      path(static_cast<AttentionPath>(options[kAttention])),
      values(format.values.code.is_commvq()) {}

}  // namespace kvq::commvq
