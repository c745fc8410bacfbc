/* Names of files that the system's loader opens, for sources with KVQ_TEST_PLUGINS. */
#ifndef KVQ_TESTS_CAPI_PLUGINS_H
#define KVQ_TESTS_CAPI_PLUGINS_H

/* Whether this system has a loader. */
#if defined(__EMSCRIPTEN__)
#define HAS_PLUGINS 0
#else
#define HAS_PLUGINS 1
#endif

#if defined(_WIN32)
#define SHARED_OBJECT(name) name ".dll"
#define OWN_LIBRARY "kvq.dll"
#define NO_SUCH_FILE "not found"
#else
#define SHARED_OBJECT(name) name ".so"
#define OWN_LIBRARY "libkvq.so"
#define NO_SUCH_FILE "No such file or directory"
#endif

/* A plug-in of tests/plugins. */
#define TEST_PLUGIN(name) KVQ_TEST_PLUGINS "/" SHARED_OBJECT(name)

#endif
