// Device memory from the caller's hooks, failing at every step; several devices; a device that stops working.
#if defined(KVQ_TEST_CUDA)

#include "conversation.h"
#include "gpu.h"
#include "support/handles.h"
#include "support/random.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <map>

namespace conformance::cuda_memory_test {
namespace {

// A caller's device allocator that can fail.
struct DeviceHooks {
  std::map<void*, size_t> blocks;
  size_t live_bytes = 0;
  int fail_at = 0;  // counts down
  int violations = 0;

  static void* allocate(void* user, size_t bytes, void* stream) {
    auto& hooks = *static_cast<DeviceHooks*>(user);
    if (hooks.fail_at > 0 && --hooks.fail_at == 0) return nullptr;
    void* memory = nullptr;
    if (cudaMallocAsync(&memory, bytes, static_cast<cudaStream_t>(stream)) != cudaSuccess) return nullptr;
    cudaMemsetAsync(memory, 0xA5, bytes, static_cast<cudaStream_t>(stream));  // NaN in uninitialized memory
    hooks.blocks[memory] = bytes;
    hooks.live_bytes += bytes;
    return memory;
  }
  static void free(void* user, void* pointer, size_t bytes, void* stream) {
    auto& hooks = *static_cast<DeviceHooks*>(user);
    const auto found = hooks.blocks.find(pointer);
    if (found == hooks.blocks.end() || found->second != bytes) {
      ++hooks.violations;
      return;
    }
    hooks.live_bytes -= bytes;
    hooks.blocks.erase(found);
    cudaMemsetAsync(pointer, 0x5A, bytes, static_cast<cudaStream_t>(stream));
    cudaFreeAsync(pointer, static_cast<cudaStream_t>(stream));
  }
};

kvq_test::Context make_context(DeviceHooks* hooks, int32_t device = 0) {
  auto options = kvq_test::initialised<kvq_context_options>();
  options.device = KVQ_DEVICE_CUDA;
  options.device_index = device;
  if (hooks != nullptr) {
    options.device_allocate = DeviceHooks::allocate;
    options.device_free = DeviceHooks::free;
    options.device_allocator_user = hooks;
  }
  return kvq_test::Context(options);
}

// A separate sequence, and a fork of another one.
struct Scene {
  Scene(kvq_context* context, const std::string& policy)
      : cache(make_cache(context, shape.options(), policy)), plain(cache), parent(cache) {
    text.append(plain, 0, 70);
    text.append(parent, 0, 50);
    child = parent.fork();
    snapshot = plain.save();
  }

  std::vector<kvq_test::Snapshot> state() const { return {plain.save(), parent.save(), child.save()}; }
  std::vector<float> attend(const kvq_test::Sequence& sequence, int32_t count) const {
    return attend_last(shape, cache, {sequence}, count, queries(shape, static_cast<size_t>(count)));
  }

  Shape shape;
  Text text{shape, 700, 1};
  kvq_test::Cache cache = nullptr;
  kvq_test::Sequence plain = nullptr;
  kvq_test::Sequence parent = nullptr;
  kvq_test::Sequence child = nullptr;
  kvq_test::Sequence made = nullptr;
  kvq_test::Snapshot snapshot;
};

}  // namespace

TEST_CASE("every allocation of device memory may fail: nothing has changed, nothing is lost") {
  if (skips()) return;
  const std::vector<std::pair<std::string, std::function<void(Scene&)>>> calls = {
      {"fork", [](Scene& s) { s.made = s.plain.fork(); }},
      {"load", [](Scene& s) { s.made = kvq_test::Sequence::load(s.cache, s.snapshot); }},
      {"append one", [](Scene& s) { s.text.append(s.plain, 70, 71); }},
      {"append many", [](Scene& s) { s.text.append(s.plain, 70, 370); }},
      {"append to a shared page", [](Scene& s) { s.text.append(s.child, 50, 60); }},
      {"truncate a shared page", [](Scene& s) { s.child.truncate(40); }},
      {"attend", [](Scene& s) { s.attend(s.plain, 60); }},
      {"reserve", [](Scene& s) { s.child.reserve(300); }},
  };
  // Per layer: a failed call for several layers may have completed some.
  Shape one_layer;
  one_layer.n_layers = 1;
  for (const char* policy : {"int4", "version: 1\nkeys: fp16\nvalues: fp16\nrecent: 2\n"}) {
    for (const auto& each : calls) {
      const auto& [name, call] = each;
      CAPTURE(std::string(policy));
      CAPTURE(each.first);
      DeviceHooks hooks;
      {
        const kvq_test::Context context = make_context(&hooks);
        int failures = 0;
        for (int nth = 1; nth < 1000; ++nth) {
          Scene scene(context, policy);
          scene.shape = one_layer;
          scene.text = Text(one_layer, 700, 1);
          const std::vector<kvq_test::Snapshot> before = scene.state();
          hooks.fail_at = nth;
          bool failed = false;
          try {
            call(scene);
          } catch (const kvq_test::Error& failure) {
            failed = true;
            CHECK(failure.status() == KVQ_E_MEMORY);
            CHECK(std::string(failure.what()).find("device_allocate") != std::string::npos);
          }
          hooks.fail_at = 0;
          if (!failed) break;
          ++failures;
          REQUIRE(scene.state() == before);
          CHECK(scene.made == nullptr);
          call(scene);  // and now it succeeds
          for (const float value : scene.attend(scene.child, 1)) REQUIRE(std::isfinite(value));
        }
        // These may need no more memory.
        const bool may_need_nothing = name == "fork" || name == "append one" || name == "truncate a shared page";
        if (!may_need_nothing) CHECK(failures > 0);
      }
      CHECK(hooks.live_bytes == 0);
      CHECK(hooks.violations == 0);
    }
  }
}

TEST_CASE("every allocation of device memory may fail while a matrix is quantized: nothing is lost") {
  if (skips()) return;
  constexpr int32_t kSize = 64;
  const std::vector<float> w = kvq_test::normal_tensor(kSize * kSize, 61);
  std::vector<float> hessian(kSize * kSize);
  for (size_t i = 0; i < kSize; ++i) hessian[i * (kSize + 1)] = 1.0F;
  auto options = kvq_test::initialised<qp_quantize_options>();
  options.scheme = "tcq-1.75";
  options.hessian = hessian.data();
  DeviceHooks hooks;
  {
    const kvq_test::Context context = make_context(&hooks);
    int failures = 0;
    for (int nth = 1; nth < 100; ++nth) {
      hooks.fail_at = nth;
      bool failed = false;
      try {
        kvq_test::Matrix::quantize(context, options, w, kSize, kSize);
      } catch (const kvq_test::Error& failure) {
        failed = true;
        CHECK(failure.status() == KVQ_E_MEMORY);
      }
      hooks.fail_at = 0;
      CHECK(hooks.live_bytes == 0);
      if (!failed) break;
      ++failures;
    }
    CHECK(failures > 8);  // to factorize, to code, and to store the matrix
  }
  CHECK(hooks.violations == 0);
}

TEST_CASE("slots that nobody wrote do not matter, whatever device memory held") {
  if (skips()) return;
  for (const std::string& policy : all_policies()) {
    CAPTURE(policy);
    DeviceHooks hooks;
    const kvq_test::Context hooked = make_context(&hooks);
    const kvq_test::Context plain = make_context(nullptr);
    const Scene a(hooked, policy);
    const Scene b(plain, policy);
    CHECK(a.state() == b.state());
    for (const int32_t count : {1, 33}) CHECK(a.attend(a.plain, count) == b.attend(b.plain, count));
    CHECK(hooks.live_bytes > 0);
    // The context owns the trained data.
    const bool is_trained = kvq_test::wants_centres(policy) || policy.find("commvq") != std::string::npos ||
                            policy.find("router") != std::string::npos;
    if (!is_trained) CHECK(hooks.live_bytes <= a.cache.usage().total_bytes);
  }
}

TEST_CASE("contexts on several GPUs at once give what each gives alone") {
  if (skips()) return;
  kvq_device_info info{};
  info.struct_size = sizeof info;
  kvq_test::checked(kvq_device_describe, KVQ_DEVICE_CUDA, 0, nullptr, &info);
  if (info.n_devices < 2) {
    MESSAGE("skipped: this machine has one GPU");
    return;
  }
  // The tests' tensors are on the current device.
  struct OnDevice {
    explicit OnDevice(int index) { cudaSetDevice(index); }
    ~OnDevice() { cudaSetDevice(0); }
  };
  std::vector<kvq_test::Context> contexts;
  std::vector<std::unique_ptr<Scene>> scenes;
  for (int32_t device = 0; device < info.n_devices; ++device) {
    const OnDevice current(device);
    contexts.push_back(make_context(nullptr, device));
    scenes.push_back(std::make_unique<Scene>(contexts.back(), "int4+hadamard"));
  }
  for (int round = 0; round < 5; ++round) {
    std::vector<std::vector<float>> outs;
    for (int32_t device = 0; device < info.n_devices; ++device) {
      const OnDevice current(device);
      Scene& scene = *scenes[static_cast<size_t>(device)];
      scene.text.append(scene.plain, 70 + 40 * round, 110 + 40 * round);
      outs.push_back(scene.attend(scene.plain, 3));
      int now = -1;
      cudaGetDevice(&now);
      CHECK(now == device);  // calls do not change the caller's current device
      CHECK(outs.back() == outs.front());
    }
  }
  // Snapshots move pages between devices.
  const OnDevice second(1);
  {
    const kvq_test::Snapshot snapshot = scenes[0]->plain.save();
    kvq_test::Sequence moved = kvq_test::Sequence::load(scenes[1]->cache, snapshot);
    CHECK(moved.save() == snapshot);
  }
  scenes.clear();
  contexts.clear();
}

// A failed kernel breaks the device for the whole process, so this runs separately: --no-skip.
TEST_CASE("a device that stops working breaks its context, and nothing aborts" * doctest::skip()) {
  if (skips()) return;
  const kvq_test::Context context = make_context(nullptr);
  Scene scene(context, "int4");
  auto error = kvq_test::initialised<kvq_error>();
  void* const nowhere = reinterpret_cast<void*>(uintptr_t{4096});
  // The kernel reads invalid memory: this call or a later one reports it.
  kvq_status status = kvq_append(scene.cache, scene.plain, 0, 1, nowhere, nowhere, KVQ_F32, nullptr, &error);
  cudaDeviceSynchronize();
  for (int i = 0; i < 2 && status == KVQ_OK; ++i) {
    size_t size = 0;
    std::vector<std::byte> buffer(size_t{1} << 20);
    status = kvq_sequence_save(scene.cache, scene.plain, buffer.data(), buffer.size(), &size, &error);
  }
  CHECK(status == KVQ_E_BACKEND);
  CHECK(error.backend_code != 0);
  MESSAGE(error.message);
  const kvq_status again = kvq_append(scene.cache, scene.plain, 0, 1, nowhere, nowhere, KVQ_F32, nullptr, &error);
  CHECK(again == KVQ_E_BACKEND);
  CHECK(std::string(error.message).find("broken") != std::string::npos);
}

}  // namespace conformance::cuda_memory_test

#endif
