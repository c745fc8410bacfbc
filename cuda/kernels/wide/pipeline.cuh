// A block of 64 rows walks the pages that these see: some warps make tiles of pages while others multiply those before.
#pragma once

#include "kernels/wide/block_rows.cuh"
#include "kernels/wide/pages.cuh"
#include "kernels/wide/visible.cuh"
#include "kernels/wide/warpgroup.cuh"

namespace kvq::cuda {

/// What warps that make tiles have in common: runs of pages, and barriers of tiles.
template <typename S>
class TileMakers {
 public:
  __device__ __forceinline__ explicit TileMakers(const WideBlock<S>& block)
      : block_(block),
        lane_{S::kMakerWarps, block.lane.warp - S::kWarps, block.lane.index, block.lane.g, block.lane.t} {}

  /// Pages [begin, end) of the list, run by run. `make`: makes the tiles of one.
  template <typename Make>
  __device__ __forceinline__ void run(int32_t begin, int32_t end, const Make& make) {
    const DevicePage* records = pages_of(block_.arguments, block_.unit);
#pragma unroll 1
    while (begin < end) {
      const FormatRun run = run_from(records, lane_, begin, end);
      if (lane_.warp == 0 && lane_.index == 0) block_.header().layout = layout_of_pages(block_.arguments, run.format);
      wait_at(kRunBarrier, S::kThreads);
      const TileOrder order{S::kLatent, made_, run.end - run.first};
      make(run, order);
      made_ += order.count();
      wait_makers();  // the layout is no longer needed
      begin = run.end;
    }
  }

 protected:
  __device__ __forceinline__ void wait_makers() const { wait_at(kMakersBarrier, 32 * S::kMakerWarps); }
  __device__ __forceinline__ typename S::Extra& extra() const { return block_.header().extra; }
  __device__ __forceinline__ void wait_free(const TilePlace<S>& place) const {
    wait_copy(shared_address(&extra().free[place.tile]), place.parity ^ 1U);
  }
  __device__ __forceinline__ uint8_t* memory_of(const TilePlace<S>& place) const {
    return block_.memory + block_.at.tiles + place.tile * block_.at.tile_bytes;
  }
  /// This warp's share of a tile is made.
  __device__ __forceinline__ void give(const TilePlace<S>& place) const {
    order_before_copies();  // and before products
    __syncwarp();
    if (lane_.index == 0) arrive(extra().full[place.tile]);
  }

  const WideBlock<S>& block_;
  const Lane lane_;

 private:
  int32_t made_ = 0;  // tiles, in earlier runs
};

/// Copies tiles from device memory, by one thread.
template <typename S>
class TileCopies : public TileMakers<S> {
 public:
  using TileMakers<S>::TileMakers;

  __device__ __forceinline__ void run(int32_t begin, int32_t end) {
    TileMakers<S>::run(begin, end,
                       [this](const FormatRun& run, const TileOrder& order) { copy_run(run.first, order); });
  }

 private:
  using TileMakers<S>::block_;
  using TileMakers<S>::lane_;

  __device__ __forceinline__ void copy_run(int32_t first, const TileOrder& order) const {
    if (lane_.warp != 0 || lane_.index != 0) return;
    const int32_t key_bytes = 2 * kSlots * block_.launch.key_width;
    const int32_t page_bytes = key_bytes + 2 * kSlots * block_.launch.value_width;
    const std::byte* tiles = block_.launch.tiles + page_bytes * tile_of_page(block_.launch, block_.unit, first);
#pragma unroll 1
    for (int32_t i = 0; i < order.count(); ++i) {
      const TilePlace<S> place(order.first + i);
      const RunSide side = order.side(i);
      this->wait_free(place);
      uint64_t& full = this->extra().full[place.tile];
      const int32_t from = !S::kLatent && side.values ? key_bytes : 0;
      const int32_t bytes = S::kLatent ? page_bytes : (side.values ? page_bytes - key_bytes : key_bytes);
      expect_bytes(full, static_cast<size_t>(bytes));
      copy_bytes(this->memory_of(place), tiles + static_cast<size_t>(side.page) * page_bytes + from,
                 static_cast<size_t>(bytes), full);
    }
  }
};

/// Decodes pages.
template <typename S>
class PageMakers : public TileMakers<S> {
 public:
  __device__ __forceinline__ explicit PageMakers(const WideBlock<S>& block)
      : TileMakers<S>(block), keys_{block.arguments.head.keys}, values_{block.arguments.head.values} {}

  __device__ __forceinline__ void run(int32_t begin, int32_t end) {
    TileMakers<S>::run(begin, end, [this](const FormatRun& run, const TileOrder& order) {
      const DevicePage* records = pages_of(block_.arguments, block_.unit) + run.first;
      if (run.format.is_float16() && values_.head_dim() == S::kValues) {
        copy_run(records, order);
      } else {
        make_run(records, order);
      }
    });
  }

 private:
  using TileMakers<S>::block_;
  using TileMakers<S>::lane_;
  using TileMakers<S>::memory_of;
  static constexpr int32_t kMakerWarps = S::kMakerWarps;
  static constexpr bool kLatent = S::kLatent;

  __device__ __forceinline__ void make_run(const DevicePage* records, const TileOrder& order) {
    const PageLayout& layout = block_.header().layout;
    const CopyRing ring{shared_address(block_.memory + block_.at.ring), block_.launch.ring_bytes,
                        shared_address(block_.header().arrived)};
    RunCopies<KeysAhead> copies(block_.arguments.head, records, lane_, ring, layout, order.pages, {}, 2);
    const PageMaker maker{layout, lane_, {lane_.warp, kMakerWarps}};
    const bool by_side = copies.by_side();
    int32_t left = 0;  // pages
    copies.start();
#pragma unroll 1
    for (int32_t i = 0; i < order.count(); ++i) {
      const RunSide side = order.side(i);
      const int32_t copy = by_side ? 0 : side.page - left;
      if (kLatent || by_side || !side.values) copies.wait(copy, 1, parity_);
      const uint32_t address = copies.address(copy);
      const TilePlace<S> place(order.first + i);
      this->wait_free(place);
      uint8_t* tile = memory_of(place);
      if (kLatent || !side.values) {
        maker.make<Side::kKeys>(keys_, block_.launch.key_width, address, tile);
      }
      if (side.values) {
        const int32_t from = by_side ? 0 : layout.values_at;
        maker.make<Side::kValues>(values_, block_.launch.value_width, address + static_cast<uint32_t>(from),
                                  tile + (kLatent ? block_.at.common : 0));
      }
      this->give(place);
      if (!by_side && !side.values) continue;
      this->wait_makers();
      ++left;
      copies.leave(1);
      copies.start();
    }
  }

  /// Pages in FP16 of heads that fill the width, which need no decoding: from device memory through registers, since
  /// shared memory has no room for more than one.
  __device__ __forceinline__ void copy_run(const DevicePage* records, const TileOrder& order) const {
    constexpr int32_t kAhead = 3;  // pages on their way to the L2 cache
    const int32_t values_at = block_.header().layout.values_at;
    int32_t batch = -1;  // of 32 pages, of which each lane knows one
    uint64_t data = 0;
#pragma unroll 1
    for (int32_t i = 0; i < order.count(); ++i) {
      const RunSide side = order.side(i);
      if (side.page / 32 != batch) {
        batch = side.page / 32;
        const int32_t mine = min(32 * batch + lane_.index, order.pages - 1);
        data = __ldg(reinterpret_cast<const unsigned long long*>(&records[mine].data));
      }
      const auto* page = reinterpret_cast<const uint8_t*>(__shfl_sync(kAll, data, side.page % 32));
      const TilePlace<S> place(order.first + i);
      if (side.values && lane_.warp == 0 && lane_.index == (side.page + kAhead) % 32 && side.page % 32 + kAhead < 32) {
        prefetch_bytes(data, block_.header().layout.bytes);
      }
      if constexpr (kLatent) {
        copy_sides<true, true>(page, values_at, place);
      } else if (side.values) {
        copy_sides<false, true>(page, values_at, place);
      } else {
        copy_sides<true, false>(page, values_at, place);
      }
      this->give(place);
    }
  }
  template <bool kKeys, bool kValues>
  __device__ __forceinline__ void copy_sides(const uint8_t* page, int32_t values_at, const TilePlace<S>& place) const {
    constexpr int32_t kChunks = kKeys ? 8 * S::kKeyPlanes / kMakerWarps : 0;
    constexpr int32_t kBlocks = kValues ? S::kValues / 32 / kMakerWarps : 0;
    auto* tile = reinterpret_cast<std::byte*>(memory_of(place));
    const int32_t dim = S::kValues;
    const ExactValues exact{dim};
    // Offsets of keys are computed anew for each page: they would be kept in more registers than there are.
    const Lane lane{kMakerWarps, opaque(lane_.warp), opaque(lane_.index), lane_.g, lane_.t};
    const MadeSide<WideSide> keys{keys_, 64 * S::kKeyPlanes, lane, tile};
    const MadeSide<ExactValues> values{exact, S::kValues, lane_, tile + (kLatent ? block_.at.common : 0)};
    const auto places = values.value_places();
    const uint8_t* of_lane = page + values_at + 128 * lane_.warp + places.from;
    uint32_t of_keys[kChunks + 1][4] = {};
    uint32_t of_values[kBlocks + 1][4][4];
#pragma unroll
    for (int32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const uint8_t* from = of_lane + 128 * kMakerWarps * b + i * places.row_bytes;
        to_array(__ldg(reinterpret_cast<const uint4*>(from)), of_values[b][i]);
      }
    }
#pragma unroll
    for (int32_t c = 0; c < kChunks; ++c) {
      const int32_t chunk = kMakerWarps * c + lane.warp;
      if (8 * chunk >= keys_.head_dim()) break;
      keys.load_key_words([=](int32_t at) { return __ldg(reinterpret_cast<const uint32_t*>(page + at)); }, chunk,
                          of_keys[c]);
    }
    this->wait_free(place);
#pragma unroll
    for (int32_t b = 0; b < kBlocks; ++b) {
      values.store_value_words(places, kMakerWarps * b + lane_.warp, of_values[b]);
    }
#pragma unroll
    for (int32_t c = 0; c < kChunks; ++c) keys.store_key_words(kMakerWarps * c + lane.warp, of_keys[c]);
  }

  using ExactValues = Geometry<S::kValues, true, 1, Lists::kGains>;
  const WideSide keys_;
  const WideSide values_;
  uint32_t parity_ = 0;
};

/// The warpgroups that multiply.
template <typename S>
class WarpgroupWalk : public BlockRows<S> {
 public:
  using BlockRows<S>::BlockRows;

  __device__ __forceinline__ void run(int32_t begin, int32_t end, const VisibleRange& range) {
    range_ = range;
#pragma unroll 1
    while (begin < end) {
      const FormatRun run = run_from(records(), block_.lane, begin, end);
      this->enter(run.format);
      wait_at(kRunBarrier, S::kThreads);
      walk(run.first, run.end);
      begin = run.end;
    }
  }

 private:
  using BlockRows<S>::block_;
  using BlockRows<S>::place_;
  using BlockRows<S>::maximum_;
  using BlockRows<S>::sum_;
  using BlockRows<S>::outputs_;
  using BlockRows<S>::records;
  using BlockRows<S>::row_of;
  using BlockRows<S>::capped;
  using Scores = float[16];

  __device__ __forceinline__ typename S::Extra& extra() const { return block_.header().extra; }

  __device__ __forceinline__ void walk(int32_t first, int32_t end) {
    const int32_t group = __shfl_sync(kAll, place_.column, 0);
    const WarpgroupProducts<S> products(block_, group);
    const TileOrder order{S::kLatent, used_, end - first};
    batch_ = -1;
    Scores scores;
    int32_t page = 0;
    if (group == 0) {
      start_scores(products, order, page, scores);
      wait_products<0>();
      hold(scores);
      weigh(first, page, order, scores);
    } else {
      start_scores(products, order, page + 1, scores);
      add_other(products, order, first, page++, scores);
    }
    // Each iteration is of two pages, and ends with nothing in flight, or the compiler would wait for every product. So
    // there may be pages behind the last one, of weight 0.
    const int32_t all = (order.pages + 1) / 2 * 2;
#pragma unroll 1
    for (; page < all; page += 2) {
      add_own(products, order, page, scores);
      add_other(products, order, first, page + 1, scores);
    }
    if (group == 0) wait_at(kWeightsBarrier, kRowThreads);
    used_ += order.count();
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) maximum_[h] = block_.header().highest[row_of(h)];
  }

  __device__ __forceinline__ void wait_full(const TilePlace<S>& place) const {
    wait_copy(shared_address(&extra().full[place.tile]), place.parity);
  }
  /// This warp no longer needs a tile.
  __device__ __forceinline__ void leave(int32_t tile) const {
    __syncwarp();
    if (block_.lane.index == 0) arrive(extra().free[TilePlace<S>(tile).tile]);
  }

  /// Starts the scores of a page; behind the last one any finite numbers.
  __device__ __forceinline__ void start_scores(const WarpgroupProducts<S>& products, const TileOrder& order,
                                               int32_t page, Scores& scores) const {
    const TilePlace<S> place(order.of_keys(min(page, order.pages - 1)));
    wait_full(place);
    products.start_keys(place.tile, scores);
  }

  /// Adds the values of a page whose weights this warpgroup has made, and starts the scores of its next page.
  __device__ __forceinline__ void add_own(const WarpgroupProducts<S>& products, const TileOrder& order, int32_t page,
                                          Scores& scores) {
    wait_at(kWeightsBarrier, kRowThreads);
    if (raises(page)) rescale(page);
    start_values(products, order, page);
    start_scores(products, order, page + 2, scores);
    wait_products<1>();
    hold(outputs_[0]);
    if (page < order.pages) leave(order.of_values(page));
  }
  /// Adds the values of a page whose weights the other warpgroup makes, and makes those of the next page meanwhile.
  __device__ __forceinline__ void add_other(const WarpgroupProducts<S>& products, const TileOrder& order, int32_t first,
                                            int32_t page, Scores& scores) {
    wait_at(kWeightsBarrier, kRowThreads);
    if (raises(page)) {
      wait_products<0>();
      hold(scores);
      rescale(page);
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) sum_[h] *= extra().factors[page % 2][row_of(h)];
    }
    start_values(products, order, page);
    wait_products<1>();
    hold(scores);
    weigh(first, page + 1, order, scores);
    wait_products<0>();
    hold(outputs_[0]);
    if (page < order.pages) leave(order.of_values(page));
  }
  /// Starts to add the values of a page whose weights are there.
  __device__ __forceinline__ void start_values(const WarpgroupProducts<S>& products, const TileOrder& order,
                                               int32_t page) {
    const TilePlace<S> place(order.of_values(min(page, order.pages - 1)));
    wait_full(place);
    products.start_values(place.tile, page, outputs_[0]);
  }

  /// Whether a page raises references of this warp's rows.
  __device__ __forceinline__ bool raises(int32_t page) const {
    return extra().raises[page % 2][block_.lane.warp % 4] != 0;
  }
  __device__ __forceinline__ void rescale(int32_t page) {
    float factors[2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) factors[i] = extra().factors[page % 2][row_of(i)];
    BlockRows<S>::rescale(factors);
  }

  /// Whether a page has tokens that some row may not see. Warps look at 32 pages at a time.
  __device__ __forceinline__ bool masked(int32_t first, int32_t page, int32_t pages) {
    if (page / 32 != batch_) {
      batch_ = page / 32;
      const int32_t begin = first + 32 * batch_;
      masked_ = masked_pages(block_.arguments, records(), block_.lane, range_, begin, first + pages);
    }
    return (masked_ >> page % 32 & 1U) != 0;
  }

  /// Turns scores into weights in shared memory, relative to references with some room, so that most pages of a long
  /// list do not raise them.
  __device__ __forceinline__ void weigh(int32_t first, int32_t page, const TileOrder& order, Scores& scores) {
    const bool exists = page < order.pages;
    if (exists && !order.shared) {  // for both groups
      leave(order.of_keys(page));
      leave(order.of_keys(page));
    }
    constexpr float kRoom = 2.0F;
    WideHeader<S>& header = block_.header();
    const Lane& lane = block_.lane;
    float scale[2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) scale[i] = header.row_scale[row_of(i)];
    if (capped()) {
      const float cap = block_.arguments.softcap;
#pragma unroll
      for (int32_t i = 0; i < 16; ++i) {
        const int32_t h = i / 2 % 2;
        scores[i] = cap * tanhf(fmaf(scores[i], scale[h], header.row_bias[row_of(h)]) / cap);
      }
      scale[0] = scale[1] = 1.0F;
    }
    if (!exists) {
#pragma unroll
      for (float& each : scores) each = minus_infinity();
    } else if (masked(first, page, order.pages)) {
      mask(first + page, scores);
    }
    bool raises = false;
    float reference[2];
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      float highest = scores[2 * h];
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) highest = fmaxf(highest, scores[i / 2 * 4 + 2 * h + i % 2]);
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 2));
      reference[h] = header.highest[row_of(h)];
      const bool above = highest > reference[h];
      raises = raises || above;
      maximum_[h] = above ? highest + kRoom / scale[h] : reference[h];
    }
    raises = __any_sync(kAll, raises);
    if (raises) {
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        const float factor =
            maximum_[h] == minus_infinity() ? 1.0F : exp2_fast((reference[h] - maximum_[h]) * scale[h]);
        sum_[h] *= factor;
        if (lane.t == 0) extra().factors[page % 2][row_of(h)] = factor;
      }
    }
    if (lane.index == 0) extra().raises[page % 2][lane.warp % 4] = raises ? 1 : 0;
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      const int32_t row = row_of(h);
      if (lane.t == 0 && raises) header.highest[row] = maximum_[h];
      const float least = maximum_[h] == minus_infinity() ? 0.0F : maximum_[h] * scale[h];
      uint8_t* weights = block_.memory + block_.at.weights + (page % 2 * S::kRows + row) * 2 * kSlots;
#pragma unroll
      for (int32_t n = 0; n < 4; ++n) {
        const float two[2] = {exp2_fast(fmaf(scores[4 * n + 2 * h], scale[h], -least)),
                              exp2_fast(fmaf(scores[4 * n + 2 * h + 1], scale[h], -least))};
        sum_[h] += two[0] + two[1];
        *reinterpret_cast<uint32_t*>(weights + (n ^ (row / 2 & 3)) * 16 + 4 * lane.t) = pack(two[0], two[1]);
      }
    }
    order_before_copies();  // and before products
  }

  /// Masks the tokens that a row does not see.
  __device__ __forceinline__ void mask(int32_t index, Scores& scores) const {
    const AttendArguments& arguments = block_.arguments;
    const uint4 record = __ldg(reinterpret_cast<const uint4*>(records()) + index);
    const DevicePage page = page_of(record.z, record.w);
    const MaskedUnit unit_rows{arguments, block_.unit, block_.rows, range_.first_masked};
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t slot = i / 2 * 8 + 2 * block_.lane.t + i % 2;
      const bool held = slot < page.count();
      const int32_t position = held ? position_in_page(arguments, block_.unit, page, index, slot) : 0;
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        const int32_t of_row = block_.header().row_position[row_of(h)];
        const bool seen = held && sees_slot(unit_rows, row_of(h), of_row, index * kSlots + slot, position);
        if (!seen) scores[i / 2 * 4 + 2 * h + i % 2] = minus_infinity();
      }
    }
  }

  VisibleRange range_{};
  int32_t used_ = 0;  // tiles, in earlier runs
  int32_t batch_ = -1;
  uint32_t masked_ = 0;
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    pipeline_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ WideLaunch launch) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const BlockWork work = block_work<S::kRows>(arguments, launch);
  if (work.rows <= 0) return;
  const WideBlock<S> block{arguments, launch, WidePlaces::of<S>(launch), memory, work.unit, work.rows, this_lane()};
  WideHeader<S>& header = block.header();
  put_row_positions<S::kRows>(arguments, work, header.row_position);
  if (threadIdx.x < S::kRows) header.highest[threadIdx.x] = minus_infinity();
  if (threadIdx.x == 0) {
    for (uint64_t& each : header.extra.full) make_barrier(each, S::kDecodes ? S::kMakerWarps : 1);
    for (uint64_t& each : header.extra.free) make_barrier(each, S::kWarps);
  }
  make_stage_barriers(header.arrived);
  const VisibleRange range{positions_of(header.row_position, 0, block.rows), first_masked(arguments, work.unit)};
  const TileRun run = visible_part(arguments, launch, work.unit, range);
  if (__shfl_sync(kAll, block.lane.warp, 0) >= S::kWarps) {
    give_registers<S::kMakerRegisters>();
    using Makers = std::conditional_t<S::kDecodes, PageMakers<S>, TileCopies<S>>;
    Makers(block).run(run.begin, run.end);
    return;
  }
  take_registers<S::kRowRegisters>();
  WarpgroupWalk<S> walk(block);
  walk.run(run.begin, run.end, range);
  walk.finish();
}

}  // namespace kvq::cuda
