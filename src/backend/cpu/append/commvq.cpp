#include "backend/cpu/context_codec.h"

#include "core/scratch.h"
#include "formats/commvq/encode.h"

namespace kvq::cpu {
namespace {

/// Groups of pages as floats, and their codes.
class GroupsToEncode {
 public:
  GroupsToEncode(const TokenBatch& tokens, std::span<const FilledGroup> groups, Allocator& scratch)
      : tokens_(tokens),
        context_(commvq::context_of(*tokens.context)),
        groups_(groups),
        members_(groups.front().members()),
        format_(*groups.front().write(0).format),
        numbers_(size(2, groups.size(), side_floats()), scratch),
        fits_(format_.keys.code.is_commvq() ? groups.size() * members_ : 0, scratch) {}

  void encode(Parallel& parallel, Allocator& scratch) {
    const size_t pages = groups_.size() * members_;
    parallel.run(static_cast<int32_t>(pages), [this](int32_t i) noexcept { load(static_cast<size_t>(i)); });
    if (format_.keys.code.is_commvq()) {
      for_each_block(parallel, scratch, pages, commvq::key_work_floats(context_),
                     [this](size_t i, float* work) noexcept { encode_keys(i, work); });
      parallel.run(static_cast<int32_t>(pages), [this](int32_t i) noexcept { write_norms(static_cast<size_t>(i)); });
    }
    if (format_.values.code.is_commvq()) {
      const bool of_layer = context_.shape().values.scope == Scope::kLayer;
      for_each_block(parallel, scratch, of_layer ? groups_.size() : pages, commvq::value_work_floats(context_),
                     [&](size_t i, float* work) noexcept { encode_values(of_layer ? i * members_ : i, work); });
    }
  }

 private:
  size_t side_floats() const { return members_ * kPageSlots * static_cast<size_t>(tokens_.head.keys); }
  const PageWrite& write(size_t page) const { return groups_[page / members_].write(page % members_); }
  int32_t member(size_t page) const { return static_cast<int32_t>(page % members_); }
  float* numbers(size_t group, Side side) {
    return numbers_.data() + (2 * group + (side == Side::kKeys ? 0 : 1)) * side_floats();
  }
  commvq::GroupSide group_side(size_t group, Side side) {
    return {numbers(group, side), static_cast<int32_t>(members_), groups_[group].write(0).head};
  }

  void load(size_t page) noexcept {
    const PageFormat plain(SideFormat{}, SideFormat{}, tokens_.head);
    const size_t group = page / members_;
    const std::byte* float16 = groups_[group].float16[page % members_];
    for (const Side side : {Side::kKeys, Side::kValues}) {
      if (format_.side(side).code.is_commvq() == false) continue;
      commvq::read_side(context_, side, float16 + plain.offset(side), static_cast<int32_t>(members_), member(page),
                        write(page).count(), write(page).slot_positions(), numbers(group, side));
    }
  }

  void encode_keys(size_t page, float* work) noexcept {
    const commvq::GroupSide keys = group_side(page / members_, Side::kKeys);
    fits_[page] = commvq::encode_keys(context_, keys, member(page), write(page).target, work);
  }

  void write_norms(size_t page) noexcept {
    const commvq::GroupSide keys = group_side(page / members_, Side::kKeys);
    const commvq::KeyFits* fits = fits_.data() + page / members_ * members_;
    commvq::write_norms(context_, keys, member(page), fits, write(page).target);
  }

  /// Encodes the values of one page, or of all pages in its group.
  void encode_values(size_t page, float* work) noexcept {
    const commvq::ValueCodes codes =
        commvq::encode_values(context_, group_side(page / members_, Side::kValues), member(page), work);
    const bool of_layer = context_.shape().values.scope == Scope::kLayer;
    for (size_t i = 0; i < (of_layer ? members_ : 1); ++i) {
      std::byte* side = write(page + i).target + format_.offset(Side::kValues);
      commvq::write_values(context_, codes, static_cast<int32_t>(i), side);
    }
  }

  const TokenBatch& tokens_;
  const commvq::Context& context_;
  std::span<const FilledGroup> groups_;
  const size_t members_;
  const PageFormat& format_;
  Vector<float> numbers_;         // [groups]{keys, values}[32][members][head_dim]
  Vector<commvq::KeyFits> fits_;  // [groups][members]
};

}  // namespace

void encode_commvq(const TokenBatch& tokens, std::span<const FilledGroup> groups, Parallel& parallel,
                   Allocator& scratch) {
  GroupsToEncode(tokens, groups, scratch).encode(parallel, scratch);
}

uint64_t encode_commvq_bytes(const TokenBatch& tokens, uint64_t groups, uint64_t members, const Parallel& parallel) {
  const commvq::Context& context = commvq::context_of(*tokens.context);
  const uint64_t pages = groups * members;
  const uint64_t floats = 2 * pages * kPageSlots * static_cast<size_t>(tokens.head.keys);
  return Allocator::bytes_in_block(floats * sizeof(float)) +
         Allocator::bytes_in_block(pages * sizeof(commvq::KeyFits)) +
         std::max(bytes_of_blocks(parallel, pages, commvq::key_work_floats(context)),
                  bytes_of_blocks(parallel, pages, commvq::value_work_floats(context)));
}

}  // namespace kvq::cpu
