//go:build kvq_experimental

package raw

// #include <stdlib.h>
import "C"

import "unsafe"

// Allocate memory of C's, for lists of strings; nil if there is none. Ended by [Free].
func Allocate(size uintptr) unsafe.Pointer { return C.malloc(C.size_t(size)) }

// Free what Allocate gave.
func Free(memory unsafe.Pointer) { C.free(memory) }
