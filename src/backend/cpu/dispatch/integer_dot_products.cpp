#include "backend/cpu/dispatch/dot_products.h"
// After what it needs.
#include "backend/cpu/dispatch/integer_highway.cpp"
