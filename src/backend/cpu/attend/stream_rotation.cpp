#include "backend/cpu/attend/attend.h"
#include "core/tensor.h"

namespace kvq::cpu {

const float* rotate(const StreamRotation& given, Parallel& parallel, AttendWorkspace& workspace) {
  constexpr double kMicrosecondsPerAngle = 0.03;
  Vector<float>& result = workspace.stream(given.tensor);
  grow(result, given.floats());
  const int32_t angles = given.rope != nullptr ? given.rope->pairs() : 0;
  parallel.run(given.n, given.n * angles * kMicrosecondsPerAngle, [&](int32_t token) noexcept {
    float angles_of_token[kMaxHeadDim];
    if (given.rope != nullptr) {
      const int32_t* positions = given.positions + static_cast<ptrdiff_t>(token) * kRopeStreams;
      given.rope->fill_streams({positions[0], positions[1], positions[2]}, angles_of_token);
    }
    float* row = result.data() + static_cast<size_t>(token) * given.floats() / static_cast<size_t>(given.n);
    for (int32_t head = 0; head < given.heads; ++head, row += given.channels) {
      const size_t from = given.strides.at(static_cast<size_t>(token), static_cast<size_t>(head));
      read_floats(given.x, given.dtype, from, given.channels, row);
      if (given.rope != nullptr) given.rope->rotate(angles_of_token, row + given.rope_channel);
    }
  });
  return result.data();
}

}  // namespace kvq::cpu
