#include "commands/matrix_shape.h"

#include <charconv>

#include "commands/usage_error.h"

namespace cli {

MatrixShape parse_matrix_shape(const std::string& text) {
  constexpr int64_t kMostRows = int64_t{1} << 24;
  constexpr int64_t kMostColumns = int64_t{1} << 20;
  constexpr int64_t kColumnMultiple = 64;
  MatrixShape shape;
  const char* const end = text.data() + text.size();
  const auto [cross, out_code] = std::from_chars(text.data(), end, shape.out);
  if (out_code == std::errc() && cross != end && *cross == 'x') {
    const auto [stop, in_code] = std::from_chars(cross + 1, end, shape.in);
    if (in_code != std::errc() || stop != end) shape.in = 0;
  }
  if (shape.out < 1 || shape.out > kMostRows || shape.in < 1 || shape.in > kMostColumns ||
      shape.in % kColumnMultiple != 0) {
    throw UsageError("--shape " + text + ": expected OUTxIN, OUT from 1 to " + std::to_string(kMostRows) +
                     " and IN a multiple of " + std::to_string(kColumnMultiple) + " up to " +
                     std::to_string(kMostColumns));
  }
  return shape;
}

}  // namespace cli
