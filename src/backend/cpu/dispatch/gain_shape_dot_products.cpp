#include "backend/cpu/dispatch/dot_products.h"
// After what it needs. NOLINTNEXTLINE(bugprone-suspicious-include): compiled a second time
#include "backend/cpu/dispatch/gain_shape_highway.cpp"
