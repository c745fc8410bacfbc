package raw

// #include <stdlib.h>
import "C"

import "unsafe"

// Allocate memory of C's, all zeros, for lists of strings and for structs that point to others; nil if there is none.
// Ended by [Free].
//
// Not by malloc: Go's collector reads what a pointer replaces, and aborts if that looks like a stale pointer of its own;
// and cgo's C.malloc aborts where there is no memory.
func Allocate(size uintptr) unsafe.Pointer { return C.calloc(C.size_t(size), 1) }

// Free what Allocate gave.
func Free(memory unsafe.Pointer) { C.free(memory) }
