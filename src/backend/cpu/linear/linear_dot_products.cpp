#include "backend/cpu/dispatch/dot_products.h"
// After what it needs.
#include "backend/cpu/linear/linear_highway.cpp"
