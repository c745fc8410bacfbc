#pragma once

#include "backend/cpu/attend/commvq/item.h"
#include "core/scratch.h"

namespace kvq::cpu {

/// As in the paper: each query is multiplied by all codes once, and a key's score is a sum of these products, rotated
/// by its position. Values are sums of probabilities by bit.
class TableAttention final : public ContextAttention {
 public:
  /// Rows per item: each has tables of its own.
  static constexpr int32_t kRows = kBlockRows;

  /// Faster than RebuildAttention for heads with `rows` rows of queries.
  static bool is_faster(const AttendBatch& batch, const KernelTable& kernels, int32_t rows);

  struct Work {
    Work(const AttendBatch& batch, MemoryCutter& memory);

    int16_t* products;      // [kRows][groups] tables
    float* units;           // [kRows][groups][plane], units of the products
    float* query;           // [2 · plane], one group
    float* inverse;         // [plane], inverse units
    uint8_t* indices;       // [kTilePages][groups][stages][2 · 32]
    uint16_t* norms;        // [kTilePages][32]
    float* page_rotations;  // [kTilePages][head_dim], rotations of the first slots
    float* rows;            // [32][head_dim], rotations of the slots of a page with gaps
    float* slot_rotations;  // [groups][32] planar vectors
    float* gap_rotations;   // slot_rotations of a page with gaps
    float* weights;         // [2 · plane]
  };

  TableAttention(const CommvqItem& item, const Work& work);

  void prepare(ptrdiff_t first, int32_t count) override;
  void score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) override;
  void add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) override {
    item_.add_bit_sums(first, count, row, rows, p);
  }

 private:
  void make_tables();
  void make_table(int32_t row, int32_t group);
  void spread_rotations(const float* rows, float* rotations) const;
  void score_page(ptrdiff_t place, int32_t row, const float* rotations, float* scores) const;

  size_t table_size() const;  // Numbers in the table of one group.
  size_t part(int32_t row, int32_t group) const { return static_cast<size_t>(row * groups_ + group); }

  const CommvqItem item_;
  Work work_;
  int32_t groups_;
  size_t plane_;
  ptrdiff_t prepared_ = 0;  // place of the page with the first indices
  bool has_tables_ = false;
};

}  // namespace kvq::cpu
