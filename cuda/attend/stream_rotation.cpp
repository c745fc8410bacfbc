#include "append/append.h"
#include "attend/attend.h"
#include "attend/workspace.h"
#include "kernels/streams/rotate.h"

namespace kvq::cuda {

const float* CudaAttention::rotate(const StreamRotation& heads, Workspace& workspace) {
  const Call call(device_);
  StreamArguments arguments{};
  arguments.x = heads.x;
  arguments.strides = heads.strides;
  arguments.dtype = heads.dtype;
  arguments.n = heads.n;
  arguments.heads = heads.heads;
  arguments.channels = heads.channels;
  arguments.rope_channel = heads.rope_channel;
  arguments.positions = heads.positions;
  if (heads.rope != nullptr) {
    arguments.rope = rope_arguments(*heads.rope);
    arguments.sections = heads.rope->sections;
  }
  arguments.out = static_cast<AttendWorkspace&>(workspace).stream(heads.tensor, heads.floats(), heads.recorded);
  call.require(launch_rotate_streams(arguments, call.stream()), "rotation kernel");
  return arguments.out;
}

}  // namespace kvq::cuda
