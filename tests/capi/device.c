/* kvq_device_describe, kvq_context_set_stream, and contexts of a device in a plug-in. No GPU is needed: plugins/pretend
 * stands for one. */
#include "check.h"
#include "fixture.h"
#include "plugins.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kPretend[] = TEST_PLUGIN("pretend");

static kvq_device_info empty_info(void) {
  kvq_device_info info;
  memset(&info, 0x77, sizeof info);
  info.struct_size = sizeof info;
  return info;
}

static kvq_context_options cuda_options(const char* plugin) {
  kvq_context_options options;
  kvq_context_options_init(&options, sizeof(options));
  options.device = KVQ_DEVICE_CUDA;
  options.plugin = plugin;
  return options;
}

/* Both calls that load the plug-in refuse it and do not change their arguments. */
static void refuse_plugin(const char* plugin, kvq_status status, const char* mention) {
  const kvq_context_options options = cuda_options(plugin);
  kvq_context* context = (kvq_context*)&kPretend;
  kvq_device_info info = empty_info();
  const kvq_device_info before = info;
  REFUSED(status, mention, kvq_context_create(&options, &context, err));
  CHECK(context == NULL);
  REFUSED(status, mention, kvq_device_describe(KVQ_DEVICE_CUDA, 0, plugin, &info, err));
  CHECK(memcmp(&info, &before, sizeof info) == 0);
}

static void the_machine(void) {
  kvq_device_info info = empty_info();
  kvq_context_options options = cuda_options(NULL);
  kvq_context* context = NULL;
  if (kvq_device_describe(KVQ_DEVICE_CUDA, 0, NULL, &info, NULL) != KVQ_OK) {
    refuse_plugin(NULL, KVQ_E_UNSUPPORTED, NULL);
    printf("no CUDA here: %s\n", last_error.message);
    return;
  }
  printf("this machine has %s, so nothing says why CUDA is unavailable\n", info.name);
  ACCEPTED(kvq_context_create(&options, &context, err));
  kvq_context_destroy(context);
  options.device_index = info.n_devices;
  REFUSED(KVQ_E_UNSUPPORTED, "index", kvq_context_create(&options, &context, err));
  REFUSED(KVQ_E_UNSUPPORTED, "index", kvq_device_describe(KVQ_DEVICE_CUDA, info.n_devices, NULL, &info, err));
}

static void plugins_that_cannot_be_used(void) {
  char far_away[600];
  size_t length = 0;
  refuse_plugin("/nowhere/libkvq_cuda.so", KVQ_E_UNSUPPORTED, "/nowhere/libkvq_cuda.so");
  ALSO_MENTIONS(NO_SUCH_FILE);
  refuse_plugin("libkvq_nowhere.so", KVQ_E_UNSUPPORTED, "libkvq_nowhere.so");
  refuse_plugin("", KVQ_E_ARGUMENT, "plugin");

  /* A long path's end and the reason both fit into the message. */
  while (length < sizeof far_away - 100) length += (size_t)sprintf(far_away + length, "/a-long-name-of-a-folder");
  strcpy(far_away + length, "/libkvq_cuda.so");
  refuse_plugin(far_away, KVQ_E_UNSUPPORTED, "folder/libkvq_cuda.so");
  ALSO_MENTIONS(NO_SUCH_FILE);

  refuse_plugin(KVQ_SOURCE_DIR "/LICENSE", KVQ_E_UNSUPPORTED, "LICENSE");
  refuse_plugin(KVQ_LIBRARY_DIR "/" OWN_LIBRARY, KVQ_E_UNSUPPORTED, OWN_LIBRARY " is not a kvq plug-in");
  ALSO_MENTIONS("kvq_cuda_plugin");
  refuse_plugin(TEST_PLUGIN("missing_library"), KVQ_E_UNSUPPORTED, SHARED_OBJECT("missing_library"));
#if !defined(_WIN32) /* whose loader does not say what is missing */
  ALSO_MENTIONS("libkvq_test_nowhere.so.7");
#endif
  refuse_plugin(TEST_PLUGIN("another_version"), KVQ_E_UNSUPPORTED,
                SHARED_OBJECT("another_version") " is of another version");
  ALSO_MENTIONS("kvq 99.0.0 plug-in 98");
  ALSO_MENTIONS(kvq_version_string());
}

static void describe_arguments(void) {
  kvq_device_info info = empty_info();
  REFUSED(KVQ_E_ARGUMENT, "device", kvq_device_describe(KVQ_DEVICE_CPU, 0, kPretend, &info, err));
  REFUSED(KVQ_E_ARGUMENT, "device", kvq_device_describe(7, 0, kPretend, &info, err));
  ALSO_MENTIONS("7");
  REFUSED(KVQ_E_ARGUMENT, "index", kvq_device_describe(KVQ_DEVICE_CUDA, -1, kPretend, &info, err));
  ALSO_MENTIONS("-1");
  REFUSED(KVQ_E_ARGUMENT, "info", kvq_device_describe(KVQ_DEVICE_CUDA, 0, kPretend, NULL, err));
  info.struct_size = 0;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_device_describe(KVQ_DEVICE_CUDA, 0, kPretend, &info, err));
  info.struct_size = 2;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_device_describe(KVQ_DEVICE_CUDA, 0, kPretend, &info, err));
}

static void describe_a_device(void) {
  kvq_device_info info = empty_info();
  ACCEPTED(kvq_device_describe(KVQ_DEVICE_CUDA, 1, kPretend, &info, err));
  CHECK(info.struct_size == sizeof info);
  CHECK(info.n_devices == 2);
  CHECK(strcmp(info.name, "Pretend 1") == 0);
  CHECK(info.compute_capability == 12);
  CHECK(info.driver_version == 3040);
  CHECK(info.memory_bytes == (uint64_t)5 << 30);
  REFUSED(KVQ_E_UNSUPPORTED, "there is no pretend device 2",
          kvq_device_describe(KVQ_DEVICE_CUDA, 2, kPretend, &info, err));
}

static void plugin_under_a_name_beyond_ascii(void) {
  static const char plugin[] = KVQ_TEST_PLUGINS "/größe-大/" SHARED_OBJECT("pretend");
  kvq_device_info info = empty_info();
  ACCEPTED(kvq_device_describe(KVQ_DEVICE_CUDA, 0, plugin, &info, err));
  CHECK(strcmp(info.name, "Pretend 0") == 0);
  refuse_plugin(KVQ_TEST_PLUGINS "/größe-小/" SHARED_OBJECT("pretend"), KVQ_E_UNSUPPORTED,
                "größe-小/" SHARED_OBJECT("pretend"));
  ALSO_MENTIONS(NO_SUCH_FILE);
}

/* Device memory hooks that record their stream. */
typedef struct device_memory {
  int live;
  void* stream_of_allocate;
  void* stream_of_free;
} device_memory;

static void* device_allocate(void* user, size_t bytes, void* stream) {
  device_memory* memory = (device_memory*)user;
  ++memory->live;
  memory->stream_of_allocate = stream;
  return malloc(bytes);
}

static void device_free(void* user, void* pointer, size_t bytes, void* stream) {
  device_memory* memory = (device_memory*)user;
  (void)bytes;
  --memory->live;
  memory->stream_of_free = stream;
  free(pointer);
}

static void context_of_a_device(void) {
  kvq_context_options options = cuda_options(kPretend);
  kvq_context* context = NULL;
  kvq_context_info info;
  int first_stream = 0;
  int second_stream = 0;
  device_memory on_device;
  tracker on_host;
  memset(&on_device, 0, sizeof on_device);
  memset(&on_host, 0, sizeof on_host);
  options.device_index = 1;
  options.stream = &first_stream;
  options.device_allocate = device_allocate;
  options.device_free = device_free;
  options.device_allocator_user = &on_device;
  options.allocate = tracker_allocate;
  options.free = tracker_free;
  options.allocator_user = &on_host;

  ACCEPTED(kvq_context_create(&options, &context, err));
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_context_describe(context, &info, err));
  CHECK(info.device == KVQ_DEVICE_CUDA);
  CHECK(strcmp(info.backend, "pretend") == 0);
  CHECK(strcmp(info.isa, "pretend_1") == 0);
  CHECK(info.bytes == on_host.live_bytes + 512); /* the plug-in counts its device memory */
  CHECK(on_device.live == 1 && on_device.stream_of_allocate == &first_stream);

  {
    /* It accepts formats that need no training, and fails later. */
    kvq_cache_options shape = small_cache_options();
    kvq_policy* policy = load_policy(context, "gs2+centres/gt1+centres");
    kvq_centres* centres = centres_for(context, "gs2+centres");
    kvq_cache* cache = NULL;
    shape.centres = centres;
    REFUSED(KVQ_E_UNSUPPORTED, "gs2+centres/gt1+centres", kvq_cache_create(context, &shape, policy, &cache, err));
    ALSO_MENTIONS("pretend");
    CHECK(cache == NULL);
    kvq_centres_destroy(centres);
    kvq_policy_destroy(policy);
    shape.centres = NULL;
    policy = load_policy(context, "gs2/gt1+nocentre");
    REFUSED(KVQ_E_BACKEND, "computes nothing", kvq_cache_create(context, &shape, policy, &cache, err));
    kvq_policy_destroy(policy);
  }

  ACCEPTED(kvq_context_set_stream(context, &second_stream, err));
  REFUSED(KVQ_E_BACKEND, "pretend device", kvq_context_set_stream(context, NULL, err));
  CHECK(last_error.backend_code == 77);
  kvq_context_destroy(context);
  CHECK(on_device.live == 0 && on_device.stream_of_free == &second_stream);
  CHECK(on_host.live_blocks == 0 && on_host.n_violations == 0);

  options.device_index = 2;
  REFUSED(KVQ_E_UNSUPPORTED, "there is no pretend device 2", kvq_context_create(&options, &context, err));
  CHECK(context == NULL);
  options.device_index = -1;
  REFUSED(KVQ_E_ARGUMENT, "device_index", kvq_context_create(&options, &context, err));
  ALSO_MENTIONS("-1");
  CHECK(on_device.live == 0 && on_host.live_blocks == 0 && on_host.n_violations == 0);
}

/* Every allocation through the plug-in can fail. */
static void out_of_memory(void) {
  kvq_context_options options = cuda_options(kPretend);
  tracker memory;
  long fail_at;
  memset(&memory, 0, sizeof memory);
  options.allocate = tracker_allocate;
  options.free = tracker_free;
  options.allocator_user = &memory;
  for (fail_at = 1;; ++fail_at) {
    kvq_context* context = NULL;
    kvq_status status;
    memory.fail_at = fail_at;
    status = kvq_context_create(&options, &context, NULL);
    kvq_context_destroy(context);
    CHECK(memory.live_blocks == 0);
    if (status == KVQ_OK) break;
    CHECK(status == KVQ_E_MEMORY);
  }
  CHECK(fail_at > 2);
}

/* A CPU ignores the CUDA fields unless they are invalid. */
static void fields_of_cpu_contexts(void) {
  kvq_context_options options;
  kvq_context* context = NULL;
  kvq_context_options_init(&options, sizeof(options));
  options.device_index = -5;
  options.plugin = "/nowhere/libkvq_cuda.so";
  options.stream = &options;
  options.device_allocate = device_allocate;
  options.device_free = device_free;
  ACCEPTED(kvq_context_create(&options, &context, err));
  kvq_context_destroy(context);

  options.device_free = NULL;
  REFUSED(KVQ_E_ARGUMENT, "device_free", kvq_context_create(&options, &context, err));
  options.device_allocate = NULL, options.device_free = device_free;
  REFUSED(KVQ_E_ARGUMENT, "device_allocate", kvq_context_create(&options, &context, err));
  options.device_free = NULL, options.reserved2 = 3;
  REFUSED(KVQ_E_ARGUMENT, "reserved2", kvq_context_create(&options, &context, err));
  ALSO_MENTIONS("3");
  CHECK(context == NULL);
}

static void stream_of_a_cpu_context(void) {
  fixture f;
  kvq_sequence* sequence;
  saved_state state;
  fixture_open(&f, "int4", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 70);
  state = take_state(f.cache, sequence);
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_context_set_stream(NULL, NULL, err));
  REFUSED(KVQ_E_UNSUPPORTED, "CPU", kvq_context_set_stream(f.context, NULL, err));
  REFUSED(KVQ_E_UNSUPPORTED, "CPU", kvq_context_set_stream(f.context, &f, err));
  CHECK(state_is(f.cache, sequence, &state));
  state_free(&state);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

void test_device(void) {
  the_machine();
  describe_arguments();
  if (HAS_PLUGINS) {
    plugins_that_cannot_be_used();
    describe_a_device();
    plugin_under_a_name_beyond_ascii();
    context_of_a_device();
    out_of_memory();
  }
  fields_of_cpu_contexts();
  stream_of_a_cpu_context();
}
