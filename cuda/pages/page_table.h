#pragma once

#include "backend/attention.h"
#include "backend/backend.h"
#include "kernels/pages/records.h"

#include <cuda_runtime_api.h>

namespace kvq::cuda {

class CudaBackend;

/// The page table of one layer of one sequence in device memory. Appending enters pages by kernel; whatever else
/// happened to a list (fork, truncate, load) is caught up with before the next attention.
class PageTable final : public LayerMirror {
 public:
  PageTable(CudaBackend& backend, Allocator& allocator, int32_t kv_heads);
  ~PageTable() override;

  void invalidate(int32_t head, int32_t first_page) noexcept override;
  void make_room(int32_t pages, int32_t ring) override;
  void publish(const Page* const* const* pages, const int32_t* counts, const LayerState& state,
               const ReservedPages* reserve) override;
  void agreed(const int32_t* counts) noexcept override;
  void require_recordable() override;
  void record_append(const TokenBatch& tokens) override;
  uint64_t bytes() const noexcept override;
  /// Of one that has made room for lists of `pages` pages, none with gaps in its positions; a ring of 0: without pages
  /// made ahead.
  static uint64_t bytes_of(int32_t kv_heads, int32_t pages, int32_t ring);

  /// Room for lists of `pages` pages.
  void reserve(int32_t pages);
  /// Page `index` of a head is being entered by a kernel; the list ends with it if `ends_list`.
  void entered(int32_t head, int32_t index, bool ends_list) noexcept;
  /// Upload what kernels did not enter of lists `[kv_heads]`.
  void catch_up(const Page* const* const* lists, const int32_t* counts);

  /// What the host's lists say from now on; the device is told by kernel, or before the next attention.
  void set_state(const LayerState& state) { state_ = state; }
  /// A page of this format is in the table, or may come.
  void takes(const PageFormat& format) noexcept;
  /// Whether some page may be in gain–shape codes.
  bool any_gains() const { return any_gains_; }
  /// Whether some page may be relative to trained centres.
  bool any_centres() const { return any_centres_; }
  /// The format of pages with codes of a codebook, of which a layer has one; null: there are none.
  const PageFormat* coded() const { return coded_; }
  /// Whether all pages have such codes on both sides or are in FP16.
  bool only_codes() const { return coded_ != nullptr && !any_others_; }
  /// Memory for positions with gaps.
  void make_positions();
  const HeadState* states() const { return states_; }
  const ReserveView& reserve_view() const { return reserve_; }
  /// Throw unless the device knows everything about the sequence; from now on the memory that it knows stays.
  void require_published();

  SequenceView view() const { return {pages_, states_, positions_, capacity_}; }

 private:
  struct Head {
    int32_t valid = 0;  // leading entries that are right
    int32_t count = 0;  // what the device believes to be the list's length; −1: nobody knows
  };

  void upload(int32_t head, const Page* const* list, int32_t count);
  void upload_states(const int32_t* counts);
  void upload_finals(const ReservedPages& reserve, int32_t first, uint64_t* finals);
  void upload_open(const Page* const* const* pages, const int32_t* counts, const ReservedPages& reserve,
                   uint64_t* open);
  void require_movable() const;

  CudaBackend& backend_;
  Allocator& allocator_;
  Vector<Head> heads_;
  int32_t capacity_ = 0;
  void* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  HeadState* states_ = nullptr;   // [kv_heads], at the beginning of the memory
  DevicePage* pages_ = nullptr;   // [kv_heads][capacity]
  int32_t* positions_ = nullptr;  // [kv_heads][capacity][32], made when a page's positions have gaps
  LayerState state_;              // of every head
  bool any_gains_ = false;
  bool any_centres_ = false;
  const PageFormat* coded_ = nullptr;
  bool any_others_ = false;
  // Pages made ahead.
  void* reserve_memory_ = nullptr;
  size_t reserve_bytes_ = 0;
  ReserveView reserve_{};
  bool published_ = false;  // the device knows everything
  bool recorded_ = false;   // a graph knows the memory: it may not move
};

/// That of a layer on this backend.
inline PageTable* table_of(const AppendedLayer& layer) { return static_cast<PageTable*>(layer.mirror); }
inline const PageTable& table_of(const AttendSequence& sequence) {
  return *static_cast<const PageTable*>(sequence.mirror);
}

}  // namespace kvq::cuda
