#pragma once

#include "backend/attention.h"
#include "device/device_arrays.h"
#include "kernels/pages/records.h"

namespace kvq::cuda {

/// Bytes at the beginning of a page table's memory.
inline size_t head_state_bytes(size_t heads) { return (heads * sizeof(HeadState) + 255) / 256 * 256; }

/// The page table of one layer of one sequence in device memory. The append kernel enters pages; whatever else happened
/// to a list (fork, truncate, load) is uploaded before the next attention.
class PageTable final : public LayerMirror {
 public:
  PageTable(Device& device, Allocator& allocator, int32_t kv_heads);

  void invalidate(int32_t head, int32_t first_page) noexcept override;
  void make_room(int32_t pages, int32_t ring) override;
  void publish(const Page* const* const* pages, const int32_t* counts, const LayerState& state,
               const ReservedPages* reserve) override;
  void agreed(const int32_t* counts) noexcept override;
  void require_recordable() override;
  void record_append(const TokenBatch& tokens, AppendKind kind) override;
  uint64_t bytes() const noexcept override;
  /// bytes() with room for lists of `pages` pages without gaps in their positions; a ring of 0: no reserved pages.
  static uint64_t bytes_of(int32_t kv_heads, int32_t pages, int32_t ring);

  /// Reserves room for lists of `pages` pages.
  void reserve(int32_t pages);
  /// Notes that a kernel enters page `index` of a head, with which the list ends if `ends_list`.
  void entered(int32_t head, int32_t index, bool ends_list) noexcept;
  /// Uploads what kernels did not enter of lists `[kv_heads]`.
  void catch_up(const Page* const* const* lists, const int32_t* counts);

  /// Notes what the host's lists say; a kernel, or an upload before the next attention, tells the device.
  void set_state(const LayerState& state) { state_ = state; }
  /// Notes that a page of this format is in the table, or may come.
  void takes(const PageFormat& format) noexcept;
  /// Whether some page may be in gain–shape codes.
  bool any_gains() const { return any_gains_; }
  /// Whether some page may be relative to trained centres.
  bool any_centres() const { return any_centres_; }
  /// The layer's format of pages with CommVQ codes; null: no page has any.
  const PageFormat* commvq_format() const { return commvq_; }
  /// Whether all pages have CommVQ codes on both sides or are in FP16.
  bool only_commvq() const { return commvq_ != nullptr && !any_others_; }
  /// Allocates memory for positions with gaps.
  void make_positions();
  /// [kv_heads]; null before room was reserved.
  HeadState* states() const { return reinterpret_cast<HeadState*>(memory_.memory()); }
  const ReserveView& reserve_view() const { return reserve_; }
  /// Throws unless the device knows everything about the sequence; the memory that it knows then stays where it is.
  void require_published();

  SequenceView view() const { return {entries(), states(), positions(), capacity_}; }

 private:
  struct Head {
    int32_t valid = 0;  // leading entries that are right
    int32_t count = 0;  // list's length as the device knows it; −1: unknown
  };

  // [kv_heads][capacity], behind the states.
  DevicePage* entries() const {
    return reinterpret_cast<DevicePage*>(memory_.memory() + head_state_bytes(heads_.size()));
  }
  int32_t* positions() const { return reinterpret_cast<int32_t*>(positions_.memory()); }

  struct HeadRange {
    int32_t begin;
    int32_t end;
  };
  void upload(HeadRange heads, const Page* const* const* lists, int32_t count);
  void upload_states(const int32_t* counts);
  void upload_words(const int32_t* numbers, int32_t* to);
  void upload_finals(const ReservedPages& reserve, int32_t first, uint64_t* finals);
  void upload_open(const Page* const* const* pages, const int32_t* counts, const ReservedPages& reserve,
                   uint64_t* open);
  void require_movable() const;

  Device& device_;
  Allocator& allocator_;
  Vector<Head> heads_;
  int32_t capacity_ = 0;
  DeviceBlock memory_;     // states, then pages
  DeviceBlock positions_;  // [kv_heads][capacity][32], allocated when a page's positions have gaps
  LayerState state_;       // of every head
  bool any_gains_ = false;
  bool any_centres_ = false;
  const PageFormat* commvq_ = nullptr;
  bool any_others_ = false;  // pages that are neither FP16 nor CommVQ on both sides
  DeviceBlock reserve_memory_;
  int32_t reserve_capacity_ = 0;  // places of each head's final pages
  ReserveView reserve_{};
  bool published_ = false;  // the device knows everything
  bool recorded_ = false;   // a graph knows the memory, which may not move
};

/// The page table of a layer on this backend.
inline PageTable* table_of(const AppendedLayer& layer) { return static_cast<PageTable*>(layer.mirror); }
inline const PageTable& table_of(const AttendSequence& sequence) {
  return *static_cast<const PageTable*>(sequence.mirror);
}

}  // namespace kvq::cuda
