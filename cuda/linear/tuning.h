// Ways of computing products with packed matrices, and which of them were measured to be the fastest.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace kvq::cuda {

struct LinearWay {
  bool own_inputs;    // each block of threads makes inputs ready for itself
  int32_t tile_rows;  // of many rows, on warpgroups; 0: few rows at a time
  int32_t cluster;    // blocks of threads that divide the columns of many rows among themselves

  friend bool operator==(const LinearWay&, const LinearWay&) = default;
};

inline constexpr LinearWay kOwnInputs{true, 0, 1};
inline constexpr LinearWay kFewRows{false, 0, 1};

/// What ways are known by.
struct LinearShape {
  static constexpr size_t kMostMatrices = 4;

  int32_t scheme = 0;  // weights::index_of
  int32_t in = 0;
  int32_t rows = 0;
  std::array<int32_t, kMostMatrices> outs{};  // of matrices of one launch; zeros behind the last

  friend auto operator<=>(const LinearShape&, const LinearShape&) = default;
};

/// Ways that were measured, and their text: a line each, with tabs between fields.
class LinearTuning {
 public:
  /// \param device  what ways were measured on, without tabs: lines of others are kept and not used.
  explicit LinearTuning(std::string device) : device_(std::move(device)) {}

  /// Null: not measured. What came from a file may be something that the device cannot do.
  const LinearWay* find(const LinearShape& shape) const;
  void put(const LinearShape& shape, const LinearWay& way) { ways_[shape] = way; }

  std::string text() const;
  /// All of it or, if it throws, nothing.
  void load(std::string_view text);

 private:
  std::string device_;
  std::map<LinearShape, LinearWay> ways_;
  std::map<std::string, std::string, std::less<>> others_;  // of other devices, by all but the way
};

}  // namespace kvq::cuda
