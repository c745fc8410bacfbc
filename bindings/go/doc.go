// Package kvq is a compressed key/value cache for language models, with attention computed on the compressed form.
//
// An inference engine computes queries, keys and values; a [Cache] stores the keys and values in 1 to 16 bits per
// scalar and computes attention directly on them. Everything is created from a [Context]:
//
//	context   memory, threads, limits and the device          NewContext
//	policy    the page format of each layer                   Context.LoadPolicy
//	codebook  vector quantization trained for one model       Context.LoadCodebook
//	centres   trained vectors that pages are relative to      Context.LoadCentres
//	router    chooses each page's format by its keys          Context.LoadRouter
//	cache     the shape of one model's attention layers       Context.NewCache
//	sequence  one conversation                                Cache.NewSequence, Sequence.Append, Sequence.Attend
//	pool      tokens in memory of an engine's blocks         Cache.NewPool, Pool.NewPlan
//	matrix    weights of a linear layer in few bits           Context.Quantize, Matrix.Linear
//
// # Tensors
//
// Tensors are slices of float32, [Float16] or [BFloat16] in a [Tensor], which [Of] creates without copying. Sizes are
// checked before a call. In steady state, appending and attending allocate nothing.
//
// # Objects
//
// Close destroys an object and may be called twice; the garbage collector destroys objects that are not closed. Objects
// may be closed in any order: whatever other objects still need is freed with the last of them. Methods of a closed
// object return [ErrClosed].
//
// # Threads
//
// Every method may be called from any goroutine at any time. A [Context], a [Cache] and immutable objects serve any
// number of calls at once. Any number of goroutines may attend to, save and describe a [Sequence] at once; calls that
// change it run one at a time. Calls on all sequences of a cache wait for [Cache.Usage].
//
// # Errors
//
// A failed call returns an [*Error] with a [Status], which errors.Is matches: errors.Is(err, kvq.ErrLimit). After a
// failure every object is as it was before the call.
//
// # Hooks
//
// A hook that panics counts as failed. The call that ran the hook panics again with a [*HookPanic] when it returns to
// Go; if the hook ran on a thread of the library, or as an object was closed, the next call that uses the context does.
//
// A hook may not use its context or objects made from it: calls return an error with [ErrState]. Goroutines that it
// starts may not do so either, and wait for the hook's call to end, so it must not wait for them. A hook may not end its
// goroutine (runtime.Goexit, which a test's FailNow uses): the library would stay in the middle of its call, so all
// later calls that use the context return an error with [ErrState].
//
// # Device memory
//
// On a CUDA context tensors are in device memory: methods whose names end in Device take a [DeviceTensor] or
// [DevicePointer]. The memory must not change until the context's stream has passed the call.
package kvq
