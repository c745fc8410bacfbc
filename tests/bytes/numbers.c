#include "bytes.h"

void fill_exactly(float* values, size_t n, size_t channels, uint32_t seed) {
  uint32_t state = seed * 2654435761u + 1u;
  size_t i;
  for (i = 0; i < n; ++i) {
    int32_t sum = -2 * 4095; /* of four uniforms of 12 bits, which is normal enough */
    int draw;
    for (draw = 0; draw < 4; ++draw) {
      state = state * 1664525u + 1013904223u;
      sum += (int32_t)(state >> 20);
    }
    if (i % channels % 16 == 5) sum = 5 * sum + 4000;
    values[i] = (float)sum / 2048.0f;
  }
}
