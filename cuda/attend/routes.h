// How the sequences of a batch are attended to: each by one of six routes.
#pragma once

#include "backend/attention.h"
#include "device/device.h"
#include "kernels/attend/attend.h"
#include "kernels/prefill/prefill.h"
#include "kernels/wide/wide.h"

#include <span>

namespace kvq::cuda {

class AttendWorkspace;

enum class Route {
  kPages,      // read pages as they are
  kPrefill,    // unpack pages to FP16 tiles, once for many query rows
  kWide,       // heads of shapes that the first two do not know
  kWideTiles,  // the same, decoded to FP16 tiles before
  kCommvq,     // read CommVQ codes as they are
  kDecoded,    // decode CommVQ codes to FP16 pages first, which then take one of the first two routes
};

/// The one choice of a sequence's route. Its page table has caught up.
Route route_of(const Device& device, const AttendBatch& batch, const AttendSequence& sequence);
/// The route of pages without CommVQ codes, by the number of query rows.
Route route_by_rows(const Device& device, const AttendBatch& batch, const AttendSequence& sequence);

struct RoutedSequence {
  const AttendSequence* sequence;
  SequenceView view;  // its page table's, or one of FP16 pages in place of CommVQ codes
  Route route;
};

/// One call of attention. The batch's sequences stay with the caller.
class AttendCall {
 public:
  AttendCall(Device& device, const Call& call, const AttendBatch& batch, AttendWorkspace& space);

  /// Attends to all sequences but those that must be decoded first.
  void run(std::span<const RoutedSequence> sequences);
  /// After the last launch that uses the arguments.
  void done();

  /// After run() of one sequence: that and its queries, for other kernels.
  const AttendArguments& arguments() const { return arguments_; }

 private:
  using LaunchSequences = std::span<const RoutedSequence* const>;

  void launch(std::span<const RoutedSequence> sequences, Route route, void (AttendCall::*attend)(LaunchSequences));
  void attend_pages(LaunchSequences sequences);
  void attend_prefill(LaunchSequences sequences);
  void attend_wide(LaunchSequences sequences) { attend_wide(sequences, false); }
  void attend_wide_tiles(LaunchSequences sequences) { attend_wide(sequences, true); }
  void attend_wide(LaunchSequences sequences, bool tiles);
  void attend_commvq(LaunchSequences sequences);
  /// Sets the arguments that all routes share.
  void set_sequences(LaunchSequences sequences);
  /// The positions of all queries in memory that kernels read.
  const int32_t* positions();

  Device& device_;
  const Call& call_;
  const AttendBatch& batch_;
  AttendWorkspace& space_;
  const PrefillKernel prefill_;
  AttendArguments arguments_{};
  int32_t* positions_ = nullptr;
};

/// Sets what does not depend on sequences and routes.
void set_batch(AttendArguments& arguments, const AttendBatch& batch, const float* inv_freq);

/// Attends to the sequences that must be decoded first.
void attend_decoded(Device& device, const Call& call, const AttendBatch& batch, AttendWorkspace& space,
                    std::span<const RoutedSequence> sequences);

/// Whether kernels that read pages as they are do not know such heads, but for those of the wide routes.
bool needs_wide(const HeadShape& head, const Rope& rope);
/// The wide route's kernel. Throws KVQ_E_UNSUPPORTED if this GPU has none for such heads.
WideKernel require_wide(const Device& device, const HeadShape& head, const WideWork& work);
/// Blocks that share the pages of a block of rows there, where these are too few for the `blocks` that run at once.
int32_t parts_of(int32_t row_blocks, int32_t longest, int32_t blocks);
/// Bytes of the tiles of one head of a sequence in the wide route.
size_t wide_tile_bytes(const WideWidths& widths, const AttendSequence& sequence, int32_t kv_heads);
/// The prefill route's kernel for heads of a shape; without a launch function for those that it does not know.
PrefillKernel prefill_of(const Device& device, const HeadShape& head);
/// Rows of a KV head from which on it is faster than other routes.
int64_t least_prefill_rows(const AttendBatch& batch, const PrefillKernel& kernel);
/// KV heads whose tiles, of that many bytes each, memory is taken for at a time.
int32_t heads_together(size_t bytes_of_head, int32_t kv_heads);
/// Pages of the longest of a sequence's lists.
int32_t longest_list(const AttendSequence& sequence, int32_t kv_heads);
/// Tiles of the prefill route for these.
int32_t tiles_of(const AttendSequence& sequence, int32_t kv_heads);

}  // namespace kvq::cuda
