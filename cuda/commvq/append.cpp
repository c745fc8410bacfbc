#include "append/append.h"
#include "commvq/device_codebook.h"
#include "device/device_arrays.h"
#include "kernels/commvq/codebook.h"
#include "pages/codecs.h"

#include <algorithm>
#include <cstring>

namespace kvq::cuda {
namespace {

/// Memory of groups that are encoded together, unless one group needs more.
constexpr size_t kWorkMemory = size_t{96} << 20U;

/// Cuts arrays from one block of memory; without memory, counts their bytes.
class Cutter {
 public:
  explicit Cutter(std::byte* memory) : memory_(memory) {}

  template <typename Number>
  Number* take(size_t n) {
    const size_t at = used_;
    used_ += (n * sizeof(Number) + 255) / 256 * 256;
    return memory_ != nullptr ? reinterpret_cast<Number*>(memory_ + at) : nullptr;
  }
  size_t used() const { return used_; }

 private:
  std::byte* memory_;
  size_t used_ = 0;
};

/// Bytes of a page with FP16 where its codes will be.
size_t float16_bytes(const PageFormat& format) {
  return static_cast<size_t>(page_places(without_codes(format), format.head).bytes + 127) / 128 * 128;
}

/// Memory to encode some groups of pages. Values take the memory of keys when these are done.
struct CommvqWork {
  CommvqWork(std::byte* memory, const CodebookTables& tables, const PageFormat& format, size_t groups, size_t members) {
    const size_t count = groups * members;
    const size_t page_bytes = float16_bytes(format);
    Cutter cutter(memory);
    pages = cutter.take<CommvqPage>(count);
    positions = cutter.take<int32_t>(count * kSlots);
    float16 = cutter.take<std::byte>(count * page_bytes);
    Cutter after(memory != nullptr ? memory + cutter.used() : nullptr);
    const size_t scalars = count * kSlots * static_cast<size_t>(tables.head_dim);
    if (format.keys.code.is_commvq()) {
      keys.numbers = after.take<float>(scalars);
      keys.norms = after.take<float>(count * kSlots);
      keys.indices = after.take<uint8_t>(count * static_cast<size_t>(tables.keys.head_stages()) * 2 * kSlots);
      keys.fits = after.take<Fit>(count * static_cast<size_t>(tables.keys.groups) * kSlots);
    }
    Cutter next(memory != nullptr ? memory + cutter.used() : nullptr);
    if (format.values.code.is_commvq()) {
      const ValueTables& table = tables.values;
      const size_t rows = (table.of_layer() ? groups : count) * kSlots;
      const auto bits = static_cast<size_t>(table.bits);
      values.unit = next.take<float>(scalars);
      if (table.stages > 1) values.residual = next.take<float>(scalars);
      values.bit = next.take<float>(rows * bits);
      values.wanted = next.take<float>(rows * bits);
      values.decoded = next.take<float>(rows * std::max(bits, static_cast<size_t>(table.width)));
      values.norms = next.take<double>(rows);
      if (table.stages > 1) values.residual_norms = next.take<double>(rows);
      values.scales = next.take<float>(rows);
      if (table.network.hidden > 0) {
        values.hidden = next.take<float>(rows * static_cast<size_t>(table.network.hidden));
        values.outputs = next.take<float>(rows * 2 * bits);
      }
    }
    bytes = cutter.used() + std::max(after.used(), next.used());
  }

  CommvqPage* pages;
  int32_t* positions;
  std::byte* float16;
  KeyWork keys{};
  ValueWork values{};
  size_t bytes;
};

/// Tokens become FP16 first, in pages of the call's own unless they are in one already; then groups of these pages
/// become codes, as many at a time as memory allows.
class CommvqAppend {
 public:
  CommvqAppend(Device& device, const Call& call, const TokenBatch& tokens, Allocator& scratch)
      : device_(device), call_(call), tokens_(tokens), scratch_(scratch) {}

  void append(const PageWrites& writes, std::span<const AppendedLayer> layers) {
    Vector<PageWrite> plain(scratch_);
    for (const PageWrite& write : writes.list()) {
      if (!has_codes(*write.format)) plain.push_back(write);
    }
    append_plain(device_, call_, tokens_, plain, layers, scratch_);

    Vector<size_t> groups(scratch_);
    for (size_t group = 0; group < writes.groups(); ++group) {
      if (has_codes(*writes.of_group(group, 0).format)) groups.push_back(group);
    }
    if (groups.empty()) return;
    const PageFormat& format = *writes.of_group(groups.front(), 0).format;
    const CodebookTables& tables = codebook_context(tokens_.context).tables();
    const size_t of_group = CommvqWork(nullptr, tables, format, 1, writes.group_size()).bytes;
    const size_t together = std::clamp<size_t>(kWorkMemory / of_group, 1, groups.size());
    for (size_t first = 0; first < groups.size(); first += together) {
      encode_some(writes, std::span<const size_t>(groups).subspan(first, std::min(together, groups.size() - first)));
    }
    if (layers.empty()) return;
    // Attention uploads the records of these pages.
    for (const PageWrite& write : writes.list()) {
      if (!has_codes(*write.format)) continue;
      PageTable& table = *table_of(layers[static_cast<size_t>(write.sequence)]);
      table.takes(*write.format);
      table.invalidate(write.head, write.index);
    }
  }

 private:
  void encode_some(const PageWrites& writes, std::span<const size_t> groups) {
    const PageFormat& format = *writes.of_group(groups.front(), 0).format;
    const CodebookContext& context = codebook_context(tokens_.context);
    const CodebookTables& tables = context.tables();
    const bool codes_keys = format.keys.code.is_commvq();
    const bool codes_values = format.values.code.is_commvq();
    const size_t members = writes.group_size();
    const size_t count = groups.size() * members;
    const DeviceBlock memory(device_, scratch_, CommvqWork(nullptr, tables, format, groups.size(), members).bytes);
    const CommvqWork work(memory.memory(), tables, format, groups.size(), members);

    const size_t page_bytes = count * sizeof(CommvqPage);
    const size_t position_bytes = count * kSlots * sizeof(int32_t);
    auto* staged = static_cast<std::byte*>(device_.staging().take(page_bytes + position_bytes));
    auto* pages = reinterpret_cast<CommvqPage*>(staged);
    auto* positions = reinterpret_cast<int32_t*>(staged + page_bytes);
    int32_t n_positions = 0;
    Vector<PageWrite> to_float16(scratch_);
    for (size_t i = 0; i < count; ++i) {
      const PageWrite& write = writes.of_group(groups[i / members], i % members);
      CommvqPage& page = pages[i];
      page = {.source = reinterpret_cast<uint64_t>(write.source),
              .target = reinterpret_cast<uint64_t>(write.target),
              .head = write.head,
              .used = write.count(),
              .first_position = write.first_position,
              .positions = -1};
      if (write.positions != nullptr) {
        page.positions = n_positions;
        std::copy_n(write.positions, kSlots, positions + n_positions);
        n_positions += kSlots;
      }
      if (write.token_count == 0 && codes_keys && codes_values) continue;
      std::byte* own = work.float16 + i * float16_bytes(format);
      page.source = reinterpret_cast<uint64_t>(own);
      to_float16.push_back(write);
      to_float16.back().target = own;
    }
    const cudaStream_t stream = call_.stream();
    const auto copy = [&](void* to, const void* from, size_t bytes) {
      if (bytes > 0) call_.require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    };
    copy(work.pages, pages, page_bytes);
    copy(work.positions, positions, static_cast<size_t>(n_positions) * sizeof(int32_t));
    device_.staging().done(stream);
    append_plain(device_, call_, tokens_, to_float16, {}, scratch_);

    const PagePlaces plain = cuda::page_places(without_codes(format), format.head);
    CommvqPages coded{.tables = tables,
                      .pages = work.pages,
                      .positions = work.positions,
                      .groups = static_cast<int32_t>(groups.size()),
                      .members = static_cast<int32_t>(members),
                      .source_values = plain.values_at,
                      .target_values = coded_values_at(format),
                      .target_bytes = static_cast<int32_t>(format.bytes()),
                      .copied = {}};
    if (codes_keys) call_.require(encode_keys(coded, work.keys, context.effort().beam, stream), "encoding kernel");
    if (codes_values)
      call_.require(encode_values(coded, work.values, context.effort().flips, stream), "encoding kernel");
    if (codes_keys && codes_values) return;
    coded.copied = codes_keys
                       ? CopiedSide{plain.values_at, coded.target_values, static_cast<int32_t>(format.value_bytes())}
                       : CopiedSide{0, 0, static_cast<int32_t>(format.key_bytes())};
    call_.require(copy_sides(coded, stream), "encoding kernel");
  }

  Device& device_;
  const Call& call_;
  const TokenBatch& tokens_;
  Allocator& scratch_;
};

}  // namespace

void append_commvq(Device& device, const Call& call, const TokenBatch& tokens, const PageWrites& writes,
                   std::span<const AppendedLayer> layers, Allocator& scratch) {
  CommvqAppend(device, call, tokens, scratch).append(writes, layers);
}

}  // namespace kvq::cuda
