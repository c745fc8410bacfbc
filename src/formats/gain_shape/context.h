// Data beside the bytes of gain–shape pages around trained centres, on the host.
#pragma once

#include "core/resident.h"
#include "core/rotation_table.h"
#include "formats/codec.h"
#include "formats/gain_shape/centre_search.h"
#include "formats/gain_shape/layout.h"
#include "formats/gain_shape/model_centres.h"
#include "formats/gain_shape/rotated_centres.h"

#include <memory>
#include <optional>

namespace kvq::centred {

/// Shared by all caches that use the centres.
class CentreSearches final : public Resident {
 public:
  /// `centres` is complete.
  CentreSearches(Allocator& allocator, std::shared_ptr<const ModelCentres> centres);

  /// The side must have centres.
  const CentreSearch& of(int32_t layer, Side side, int32_t head) const {
    const auto& searches = side == Side::kKeys ? keys_ : values_;
    return searches[static_cast<size_t>(layer * centres_->shape.kv_heads + head)];
  }
  /// Searches of all heads.
  std::span<const CentreSearch> of(int32_t layer, Side side) const {
    return {&of(layer, side, 0), static_cast<size_t>(centres_->shape.kv_heads)};
  }
  const ModelCentres& centres() const { return *centres_; }

 private:
  std::shared_ptr<const ModelCentres> centres_;
  Vector<CentreSearch> keys_;  // [layers][kv_heads], or empty
  Vector<CentreSearch> values_;
};

struct Context final : LayerContext {
  Context(Allocator& allocator, const CentreSearches& searches, int32_t layer, const RotationTable& rotations);

  /// Make `rotated_centres` and `page_step`, if there are centres of keys.
  void rotate_centres(Allocator& allocator);

  const CentresShape& shape() const { return searches.centres().shape; }
  const CentreSearch& search(Side side, int32_t head) const { return searches.of(layer, side, head); }
  SideLayout layout(Side side, const PageFormat& format) const {
    return side_layout(side, format.side(side), format.head.of(side), shape().centres(side));
  }
  /// A centre, [head_dim].
  const float* centre(Side side, int32_t head, int32_t index) const {
    return search(side, head).centres.data() + static_cast<ptrdiff_t>(index) * shape().head_dim;
  }
  /// Biases for vectors rotated back by rows of rotations: by the page's, as in `page_rotations`, or by each slot's
  /// own.
  const float* biases(Side side, int32_t head, bool by_page) const {
    const Vector<float>& of = side == Side::kValues ? value_biases : by_page ? key_biases : own_biases;
    return of.data() + static_cast<ptrdiff_t>(head) * search(side, head).padded_count();
  }

  const CentreSearches& searches;
  int32_t layer;
  const RotationTable& rotations;
  Vector<float> page_rotations;                   // [32] rows, for a page from position 0
  Vector<float> page_columns;                     // page_rotations as [2 · pairs][32]
  Vector<float> key_biases;                       // [kv_heads][padded], for centres rotated by the page
  Vector<float> own_biases;                       // [kv_heads][padded], for centres rotated by slot
  Vector<float> value_biases;                     // [kv_heads][padded]
  std::optional<RotatedCentres> rotated_centres;  // empty unless rotate_centres() was called
  Vector<float> page_step;  // rotation by 32 positions, as written by RotationOrder::put_rotation(); empty likewise
};

inline const Context& context_of(const LayerContext& context) { return static_cast<const Context&>(context); }

}  // namespace kvq::centred
