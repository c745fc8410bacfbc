// Trains routers on a model's queries, keys and values of some texts.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "core/training_progress.h"
#include "formats/router/router.h"
#include "training/router/network_training.h"
#include "training/router/page_errors.h"
#include "training/router/page_labels.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace kvq {

struct RouterTrainerOptions {
  RouterMethod method = RouterMethod::kLabel;
  int32_t sharing = 3;
  int32_t epochs = 0;      // 0: the library's choice
  double mean_bits = 0.0;  // wanted, with labels
  double lambda = 0.5;     // of the paper's loss
  double learning_rate = 3e-4;
  uint64_t seed = 1;
  uint64_t max_bytes = 0;  // of keys and work space
  std::string_view note;
};

class RouterTrainer {
 public:
  /// \param allocator  of the result, and of everything else below `options.max_bytes`
  /// \param cache      options of the model's caches, checked with every expert
  /// \param policy     with the experts
  /// \param training   of the pages, if one of them needs it
  RouterTrainer(Allocator& allocator, Parallel& parallel, Backend& backend, const kvq_cache_options& cache,
                const Policy& policy, const CacheTraining& training, const RouterTrainerOptions& options);

  int32_t n_layers() const { return untrained_.shape.n_layers; }
  /// Whether texts need queries and values.
  bool needs_attention() const { return errors_.has_value(); }

  /// Throws KVQ_E_ARGUMENT for numbers that cannot be stored, and for a text of another length than in other layers.
  void add(int32_t layer, const RouterText& text);

  /// Train on the added texts, which are then dropped. `loss`: of the model, for the paper's method. Throws
  /// KVQ_E_CANCELLED, and KVQ_E_STATE if layers have different texts, no text is long enough, or the training diverges.
  void run(double loss, const TrainingProgress& progress);

  /// Throws KVQ_E_STATE before run().
  const std::shared_ptr<const ModelRouter>& result() const;

 private:
  /// Needed data of one text of one layer.
  struct Text {
    int32_t tokens;
    Vector<uint16_t> keys;  // of deciding layers: [pages, kv_heads, 32, head_dim]
    Vector<float> errors;   // see PageErrors; empty without labels
  };

  void require_untrained() const;
  void check_length(int32_t layer, int32_t n) const;
  Vector<uint16_t> copy_keys(const RouterText& text);
  int64_t check_texts() const;
  void require_finite(const ModelRouter& router, double loss) const;
  RouterPages pages_of(int32_t group);
  GroupErrors errors_of(int32_t group);

  Allocator& allocator_;
  Allocator work_;
  Parallel& parallel_;
  RouterTrainerOptions options_;
  Votes votes_;
  int32_t q_heads_;
  ModelRouter untrained_;  // the result without groups
  std::optional<PageErrors> errors_;
  Vector<Vector<Text>> texts_;  // [n_layers]
  std::shared_ptr<const ModelRouter> result_;
};

}  // namespace kvq
