package raw

// #include <stdint.h>
//
// static uintptr_t kvq_go_thread(void) {
//   static _Thread_local char here;
//   return (uintptr_t)&here;
// }
import "C"

// Thread returns a number of the thread that runs the goroutine; no other thread that lives has it.
func Thread() uintptr { return uintptr(C.kvq_go_thread()) }
