/* Prints the name of the first CUDA device with the program's own copy of the library, after leaving its folder. The
 * only argument, if there is one: the plug-in's path. */
#include "kvq.h"

#include <stdio.h>
#include <unistd.h>

int main(int argc, char** argv) {
  kvq_error error;
  kvq_device_info info;
  kvq_error_init(&error, sizeof(error));
  info.struct_size = sizeof info;
  if (chdir("/") != 0) return 1;
  if (kvq_device_describe(KVQ_DEVICE_CUDA, 0, argc > 1 ? argv[1] : NULL, &info, &error) != KVQ_OK) {
    printf("%s\n", error.message);
    return 1;
  }
  printf("%s\n", info.name);
  return 0;
}
