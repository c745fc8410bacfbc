// Package kvq is a compressed key/value cache for language models, attended to in compressed form.
//
// An inference engine computes queries, keys and values; a [Cache] keeps the keys and values in 1 to 16 bits per
// scalar, and attention is computed directly on them. Everything is made from a [Context]:
//
//	context   memory, threads, limits and the device          NewContext
//	policy    which page format each layer uses               Context.LoadPolicy
//	codebook  vector quantization trained for one model       Context.LoadCodebook
//	centres   what pages of one model are stored relative to  Context.LoadCentres
//	router    which page format each page gets, by its keys   Context.LoadRouter
//	cache     the shape of one model's attention layers       Context.NewCache
//	sequence  one conversation                                Cache.NewSequence, Sequence.Append, Sequence.Attend
//	matrix    weights of a linear layer in few bits           Context.Quantize, Matrix.Linear
//
// # Tensors
//
// Tensors are slices of float32, [Float16] or [BFloat16] in a [Tensor], which [Of] makes without copying. Sizes are
// checked before anything is called. In steady state neither appending nor attending allocates.
//
// # Objects
//
// Close ends an object and may be called twice; what is not closed ends when it is collected. Objects may be closed in
// any order: what others still need goes with the last of them. A closed object answers with [ErrClosed].
//
// # Threads
//
// Every method may be called from any goroutine at any time. A [Context], a [Cache] and everything immutable serve any
// number of calls at once. A [Sequence] is attended to, saved and described by any number of goroutines at once and
// changed by one; others wait. So do all sequences of a cache while [Cache.Usage] adds them up.
//
// # Errors
//
// What fails returns an [*Error] with a [Status], to which errors.Is compares: errors.Is(err, kvq.ErrLimit). After a
// failure every object is as it was before the call.
//
// # Hooks
//
// A hook that panics is taken for one that failed. The panic is raised again, as a [*HookPanic], when the call returns
// to Go: the call that the hook was called by or, of a hook called from the library's own threads, the next one that
// uses the context. A hook may not end its goroutine (runtime.Goexit, which FailNow of a test uses too), and may not use
// the context that it belongs to or what was made from it.
//
// # Device memory
//
// On a CUDA context tensors lie in device memory: methods whose names end in Device take a [DeviceTensor] or
// [DevicePointer]. Memory must stay as it is until the context's stream has come past the call.
package kvq
