// One launch writes pages, whatever the number of sequences.
#include "append/append.h"

#include "core/tensor.h"
#include "device/device_arrays.h"
#include "kernels/append/append.h"
#include "kernels/commvq/codebook.h"
#include "kernels/pool/append.h"
#include "pages/codecs.h"
#include "pages/device_centres.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// Whether 16-byte loads may read the rows of a tensor.
bool takes_vectors(const void* tensor, const HeadStrides& strides, kvq_dtype dtype) {
  const auto bytes = static_cast<uint64_t>(dtype_bytes(dtype));
  const uint64_t places = reinterpret_cast<uintptr_t>(tensor) | static_cast<uint64_t>(strides.token) * bytes |
                          static_cast<uint64_t>(strides.head) * bytes;
  return places % 16 == 0;
}

/// A full page that is sealed with the tokens that it was filled with is quicker to write from these.
int32_t kept_of(const PageWrite& write) { return write.given_token >= 0 ? 0 : write.kept; }
int32_t token_begin_of(const PageWrite& write) {
  return write.given_token >= 0 ? write.given_token : write.token_begin;
}
int32_t token_count_of(const PageWrite& write) { return write.given_token >= 0 ? kSlots : write.token_count; }

bool has_gaps(const PageWrite& write) { return !write.slot_positions().are_consecutive(write.count()); }

/// Whether a page's encoder must know the positions of all slots.
bool rotates_by_slots(const PageWrite& write) { return has_gaps(write) && without_codes(*write.format).centred_keys(); }

/// Whether a page has new tokens alone, which makes it quick to write.
bool is_whole(const PageWrite& write) { return token_count_of(write) == kSlots; }

/// Position of a page's first new token if the others follow it, otherwise where positions are: ~token_begin.
int32_t token_position(const TokenBatch& tokens, const PageWrite& write) {
  const int32_t begin = token_begin_of(write);
  const int32_t count = token_count_of(write);
  if (count == 0) return 0;
  const auto of_page = tokens.positions.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  return SlotPositions{of_page.data(), 0}.are_consecutive(count) ? of_page.front() : ~begin;
}

DeviceWrite device_write(const TokenBatch& tokens, const PageWrite& write, bool ends_list) {
  return {.source = reinterpret_cast<uint64_t>(kept_of(write) > 0 ? write.source : nullptr),
          .target = reinterpret_cast<uint64_t>(write.target),
          .format = without_codes(*write.format).bits,
          .kept = static_cast<uint8_t>(kept_of(write)),
          .token_count = static_cast<uint8_t>(token_count_of(write)),
          .has_positions = static_cast<uint8_t>(has_gaps(write) ? 1 : 0),
          .ends_list = static_cast<uint8_t>(ends_list ? 1 : 0),
          .head = write.head,
          .token_begin = token_begin_of(write),
          .token_position = token_position(tokens, write),
          .index = write.index,
          .first_position = write.first_position,
          .sequence = write.sequence};
}

AppendTarget target_of(const AppendedLayer& layer) {
  return {table_of(layer)->view(), {0, layer.after.length, layer.after.next_position, layer.after.room}};
}

/// Tell the targets, of which a call without lists has one, the scales of the sequences' tokens.
void set_scales(std::span<const PageWrite> writes, AppendTarget* targets) {
  for (const PageWrite& write : writes) {
    if (write.scales) targets[write.sequence].view.scales = write.scales;
  }
}

/// Whether write `i` is a list's last one: writes are ordered by head, then by sequence.
bool is_last(std::span<const PageWrite> writes, size_t i) {
  return i + 1 == writes.size() || writes[i + 1].head != writes[i].head || writes[i + 1].sequence != writes[i].sequence;
}

/// Whether a list ends with write `i`. A page without new tokens is sealed somewhere in the list.
bool ends_list(std::span<const PageWrite> writes, size_t i) { return is_last(writes, i) && writes[i].token_count > 0; }

/// Positions that kernels look up: all new tokens', then those of all slots of some pages.
struct StagedPositions {
  int32_t* memory;
  size_t tokens;
};

/// Orders slow writes first. The others stay ordered by head, unless heads have equally many: then writes of the same
/// tokens lie side by side. Returns the number of slow ones.
size_t order_writes(const TokenBatch& tokens, std::span<const PageWrite> writes, DeviceWrite* to,
                    const StagedPositions& positions) {
  const auto whole = static_cast<size_t>(std::count_if(writes.begin(), writes.end(), is_whole));
  const size_t slow = writes.size() - whole;
  const auto heads = static_cast<size_t>(tokens.kv_heads);
  const size_t pages = whole % heads == 0 ? whole / heads : 0;
  size_t next_slow = 0;
  size_t next_whole = 0;
  size_t next_position = positions.tokens;
  for (size_t i = 0; i < writes.size(); ++i) {
    size_t place = next_slow;
    if (is_whole(writes[i])) {
      place = slow + (pages == 0 ? next_whole : next_whole % pages * heads + next_whole / pages);
      ++next_whole;
    } else {
      ++next_slow;
    }
    to[place] = device_write(tokens, writes[i], ends_list(writes, i));
    if (!rotates_by_slots(writes[i])) continue;
    to[place].token_position = ~(static_cast<int32_t>(next_position) + kept_of(writes[i]));
    std::copy_n(writes[i].positions, kSlots, positions.memory + next_position);
    next_position += kSlots;
  }
  return slow;
}

PagesWritten pages_written(std::span<const PageWrite> writes, HeadShape head, int32_t shared_limit) {
  PagesWritten pages;
  for (const PageWrite& write : writes) pages.add(without_codes(*write.format));
  return fit(pages, head, shared_limit);
}

/// Reserve room in the tables for all pages that are written.
void make_room(std::span<const PageWrite> writes, std::span<const AppendedLayer> layers) {
  const auto table = [layers](const PageWrite& write) { return table_of(layers[static_cast<size_t>(write.sequence)]); };
  for (size_t i = 0; i < writes.size(); ++i) {
    if (is_last(writes, i)) table(writes[i])->reserve(writes[i].index + 1);
  }
  for (const PageWrite& write : writes) {
    if (has_gaps(write)) table(write)->make_positions();
  }
}

}  // namespace

AppendArguments append_arguments(const Device& device, const TokenBatch& tokens) {
  AppendArguments arguments{};
  arguments.k = tokens.k;
  arguments.v = tokens.v;
  arguments.k_strides = tokens.k_strides;
  arguments.v_strides = tokens.v_strides;
  arguments.dtype = tokens.dtype;
  const bool vectors = takes_vectors(tokens.k, tokens.k_strides, tokens.dtype) &&
                       takes_vectors(tokens.v, tokens.v_strides, tokens.dtype);
  arguments.vectors = vectors ? 1 : 0;
  arguments.kv_heads = tokens.kv_heads;
  arguments.head = tokens.head;
  arguments.hadamard = tokens.hadamard_keys || tokens.hadamard_values ? 1 : 0;
  arguments.status = device.status();
  arguments.rope = rope_arguments(*tokens.rope);
  if (const CentreContext* centres = centre_context(tokens.context)) arguments.centres = centres->tables();
  return arguments;
}

void prepare_appending(const Device& device) {
  check(prepare_append(), "cudaFuncSetAttribute");
  check(prepare_append_next(device.shared_limit()), "cudaFuncSetAttribute");
  check(prepare_pool_append(device.shared_limit()), "cudaFuncSetAttribute");
  check(prepare_encode_keys(), "cudaFuncSetAttribute");
}

RopeArguments rope_arguments(const Rope& rope) {
  RopeArguments result{};
  result.pairing = rope.pairing;
  result.begin = rope.begin;
  result.rotary_dim = rope.rotary_dim;
  std::copy(rope.inv_freq.begin(), rope.inv_freq.end(), result.inv_freq);
  return result;
}

// Values are in device memory: the append kernel looks at them and sets the status that the next call reports.
void append_pages(Device& device, const Call& call, const TokenBatch& tokens, const PageWrites& grouped,
                  std::span<const AppendedLayer> layers, Allocator& scratch) {
  const std::span<const PageWrite> writes = grouped.list();
  if (!layers.empty()) make_room(writes, layers);
  const bool any_commvq =
      std::any_of(writes.begin(), writes.end(), [](const PageWrite& write) { return has_codes(*write.format); });
  if (any_commvq) {
    append_commvq(device, call, tokens, grouped, layers, scratch);
  } else {
    append_plain(device, call, tokens, writes, layers, scratch);
  }
  for (const AppendedLayer& layer : layers) table_of(layer)->set_state(layer.after);
}

void append_plain(Device& device, const Call& call, const TokenBatch& tokens, std::span<const PageWrite> writes,
                  std::span<const AppendedLayer> layers, Allocator& scratch) {
  if (writes.empty()) return;
  AppendArguments arguments = append_arguments(device, tokens);
  arguments.n_writes = static_cast<int32_t>(writes.size());
  const bool scattered = std::any_of(writes.begin(), writes.end(),
                                     [&tokens](const PageWrite& write) { return token_position(tokens, write) < 0; });
  // Kernel arguments hold few writes; more, and positions, go through page-locked memory.
  const size_t write_bytes = writes.size() <= kInlineWrites ? 0 : writes.size() * sizeof(DeviceWrite);
  const size_t target_bytes = layers.size() <= 1 ? 0 : layers.size() * sizeof(AppendTarget);
  const size_t token_positions = scattered ? tokens.positions.size() : 0;
  const auto by_slots = static_cast<size_t>(std::count_if(writes.begin(), writes.end(), rotates_by_slots));
  const size_t position_bytes = (token_positions + by_slots * kSlots) * sizeof(int32_t);
  const size_t staged = write_bytes + target_bytes + position_bytes;
  auto* memory = staged > 0 ? static_cast<std::byte*>(device.staging().take(staged)) : nullptr;
  DeviceWrite* device_writes = arguments.inline_writes;
  if (write_bytes > 0) arguments.writes = device_writes = reinterpret_cast<DeviceWrite*>(memory);
  auto* positions = reinterpret_cast<int32_t*>(memory + write_bytes + target_bytes);
  if (position_bytes > 0) arguments.positions = positions;
  std::copy_n(tokens.positions.begin(), token_positions, positions);
  arguments.n_slow = static_cast<int32_t>(order_writes(tokens, writes, device_writes, {positions, token_positions}));
  arguments.pages = pages_written(writes, tokens.head, device.shared_limit());
  DeviceBlock block_scratch;
  if (arguments.pages.scratch_apart != 0) {
    arguments.scratch_blocks = std::min(arguments.n_writes, device.multiprocessors());
    const size_t floats = static_cast<size_t>(arguments.scratch_blocks) * scratch_floats(tokens.head);
    block_scratch = DeviceBlock(device, scratch, floats * sizeof(float));
    arguments.scratch = reinterpret_cast<float*>(block_scratch.memory());
  }
  if (target_bytes > 0) {
    auto* targets = reinterpret_cast<AppendTarget*>(memory + write_bytes);
    std::transform(layers.begin(), layers.end(), targets, target_of);
    set_scales(writes, targets);
    arguments.targets = targets;
  } else {
    if (!layers.empty()) arguments.target = target_of(layers.front());
    set_scales(writes, &arguments.target);
  }
  call.require(launch_append(arguments, call.stream()), "append kernel");
  if (staged > 0) device.staging().done(call.stream());
  if (layers.empty()) return;
  for (size_t i = 0; i < writes.size(); ++i) {
    PageTable& table = *table_of(layers[static_cast<size_t>(writes[i].sequence)]);
    table.takes(*writes[i].format);
    // Positions with gaps are uploaded before the next attention.
    if (has_gaps(writes[i])) {
      table.invalidate(writes[i].head, writes[i].index);
    } else {
      table.entered(writes[i].head, writes[i].index, ends_list(writes, i));
    }
  }
}

void record_append(Device& device, const TokenBatch& tokens, AppendKind kind, PageTable& table) {
  const Call call(device);
  table.require_published();
  AppendArguments arguments = append_arguments(device, tokens);
  arguments.target.view = table.view();
  arguments.target.view.scales = tokens.scales;
  const FormatCode sealed{static_cast<uint32_t>(table.reserve_view().sealed)};
  PagesWritten pages;
  pages.add(sealed);
  arguments.pages = fit(pages, tokens.head, device.shared_limit());
  if (arguments.pages.scratch_apart != 0) {
    fail(KVQ_E_UNSUPPORTED,
         "a CUDA graph cannot append to heads of %d and %d channels on this GPU, whose blocks have %d bytes of shared "
         "memory: append outside of graphs",
         tokens.head.keys, tokens.head.values, device.shared_limit());
  }
  call.require(launch_append_next(arguments, table.reserve_view(), tokens.n, kind, call.stream()), "append kernel");
}

}  // namespace kvq::cuda
