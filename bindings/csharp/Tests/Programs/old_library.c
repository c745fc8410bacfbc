/* A libkvq from before the first API version, whose own version is no UTF-8. */
#include <stdint.h>

int32_t kvq_api_version(void) { return 0; }

const char* kvq_version_string(void) { return "0.9.1\xff"; }
