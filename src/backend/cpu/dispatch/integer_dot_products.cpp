#include "backend/cpu/dispatch/dot_products.h"
// After what it needs. NOLINTNEXTLINE(bugprone-suspicious-include): compiled a second time
#include "backend/cpu/dispatch/integer_highway.cpp"
