/* Prints the name of the first CUDA device, from the program's own copy of the library, after it left its folder. */
#include "kvq.h"

#include <stdio.h>
#include <unistd.h>

int main(void) {
  kvq_error error;
  kvq_device_info info;
  kvq_error_init(&error, sizeof(error));
  info.struct_size = sizeof info;
  if (chdir("/") != 0) return 1;
  if (kvq_device_describe(KVQ_DEVICE_CUDA, 0, NULL, &info, &error) != KVQ_OK) {
    printf("%s\n", error.message);
    return 1;
  }
  printf("%s\n", info.name);
  return 0;
}
