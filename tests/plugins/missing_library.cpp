// A plug-in that needs a missing library. The build compiles this file into both.

#if defined(KVQ_TEST_THE_LIBRARY)
extern "C" __attribute__((visibility("default"))) int kvq_test_missing_function() { return 0; }
#else
extern "C" int kvq_test_missing_function();
extern "C" __attribute__((visibility("default"))) const void* kvq_cuda_plugin() {
  return kvq_test_missing_function() == 0 ? nullptr : "";
}
#endif
