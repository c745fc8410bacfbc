// A plug-in of another version, whose functions must not be called.
#include "backend/plugin.h"

namespace {

constexpr kvq::BackendPlugin kPlugin{sizeof(kvq::BackendPlugin), "kvq 99.0.0 plug-in 98", nullptr, nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const kvq::BackendPlugin* kvq_cuda_plugin() { return &kPlugin; }
