"""Python functions that the library calls."""

import ctypes
import gc
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import numpy
import pytest

import libkvq


class Allocator:
    """Memory of the C library, counted."""

    def __init__(self):
        self.bytes, self.calls, self.fail_after = 0, 0, None
        self.lock = threading.Lock()
        self._libc = ctypes.CDLL(None)
        self._libc.aligned_alloc.restype = ctypes.c_void_p
        self._libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self._libc.free.argtypes = [ctypes.c_void_p]

    def allocate(self, size, alignment):
        with self.lock:
            self.calls += 1
            if self.fail_after is not None and self.calls > self.fail_after:
                raise OSError("no more memory of this kind")
            self.bytes += size
        alignment = max(alignment, 16)
        return self._libc.aligned_alloc(alignment, -(-size // alignment) * alignment)

    def free(self, address, size, alignment):
        with self.lock:
            self.bytes -= size
        self._libc.free(address)


def no_hooks_are_left():
    gc.collect()
    return not libkvq._hooks.Hooks._alive


def fill(cache, tokens=100):
    sequence = cache.sequence()
    sequence.append(0, *numpy.random.default_rng(1).standard_normal((2, tokens, 1, 32), dtype="f4"))
    return sequence


def test_all_memory_comes_from_the_allocator():
    allocator, released = Allocator(), []
    with libkvq.Context(allocator=allocator, released=lambda: released.append(1)) as context:
        cache = libkvq.Cache(context, 1, 1, 1, 32, policy="int4")
        sequence = fill(cache)
        assert allocator.bytes == context.describe().bytes > 0
    assert not released  # the sequence and the cache hold the context
    sequence.close()
    cache.close()
    assert released == [1] and allocator.bytes == 0


def test_hooks_end_with_what_was_made_from_the_context():
    def use():
        allocator = Allocator()
        context = libkvq.Context(allocator=allocator)
        fill(libkvq.Cache(context, 1, 1, 1, 32))
        return allocator

    allocator = use()
    gc.collect()
    assert allocator.bytes == 0
    assert no_hooks_are_left()


def test_an_allocator_that_raises_fails_the_call_and_raises_again():
    allocator = Allocator()
    with libkvq.Context(allocator=allocator) as context:
        cache = libkvq.Cache(context, 1, 1, 1, 32)
        sequence = fill(cache)
        before = sequence.save()
        held = allocator.bytes
        allocator.fail_after = allocator.calls
        with pytest.raises(OSError, match="no more memory of this kind") as caught:
            sequence.append(0, *numpy.ones((2, 100, 1, 32), "f4"))
        assert isinstance(caught.value.__context__, libkvq.KvqMemoryError)
        with pytest.raises(OSError):
            cache.sequence()
        allocator.fail_after = None
        assert allocator.bytes == held and sequence.save() == before


ROWS = numpy.ones((40, 1, 32), "f4")
CALLS = {
    "Policy": lambda it: libkvq.Policy(it.context, "int4"),
    "Policy.with_eviction": lambda it: it.policy.with_eviction("h2o", 64),
    "Cache": lambda it: libkvq.Cache(it.context, 1, 1, 1, 32),
    "Cache.sequence": lambda it: it.cache.sequence(),
    "Cache.load": lambda it: it.cache.load(it.snapshot, "gs2", recode=True),
    "Cache.load_sequence": lambda it: it.cache.load_sequence(it.snapshot),
    "Cache.describe_snapshot": lambda it: it.cache.describe_snapshot(it.snapshot, "gs2", recode=True),
    "Cache.save": lambda it: it.cache.save([it.sequence]),
    "Cache.append": lambda it: it.cache.append(0, [it.sequence], ROWS, ROWS, token_counts=[40]),
    "Cache.attend": lambda it: it.cache.attend(0, [it.sequence], ROWS, query_counts=[40]),
    "Sequence.append": lambda it: it.sequence.append(0, ROWS, ROWS),
    "Sequence.fork": lambda it: it.sequence.fork(),
    "Sequence.recode": lambda it: it.cache.load_sequence(it.snapshot).recode("gs2"),
    "Sequence.reserve": lambda it: it.sequence.reserve(400),
    "Sequence.compress": lambda it: it.sequence.compress(40),
    "Matrix.quantize": lambda it: libkvq.Matrix.quantize(it.context, numpy.ones((64, 64), "f4")),
    "Matrix.linear": lambda it: it.matrix.linear(numpy.ones((40, 64), "f4")),
    "Plan": lambda it: libkvq.experimental.Plan(it.context, {"a": "nuq-4"}),
    "Fusion": lambda it: libkvq.experimental.Fusion(it.context, [[1.0]], [[1.0]], {(0,): [1.0]}),
    "CentresTrainer": lambda it: libkvq.experimental.CentresTrainer(it.context, 1, 1, 32),
    "solve": lambda it: libkvq.experimental.solve(it.context, [[(1.0, 1.0, 1.0), (2.0, 1.0, 0.5)]] * 40, max_bytes=50),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_allocators_exception_leaves_the_call_that_ran_it(call):
    allocator = Allocator()
    with libkvq.Context(allocator=allocator) as context:
        it = SimpleNamespace(context=context, policy=libkvq.Policy(context, "int4"))
        it.cache = libkvq.Cache(context, 1, 1, 1, 32, policy=it.policy.with_eviction("streaming", 64))
        it.sequence = fill(it.cache)
        it.matrix = libkvq.Matrix.quantize(context, numpy.ones((64, 64), "f4"))
        it.snapshot = it.sequence.save()
        held, allocator.fail_after = allocator.bytes, allocator.calls
        with pytest.raises(OSError, match="no more memory of this kind"):
            CALLS[call](it)
        allocator.fail_after = None
        assert allocator.bytes == held == context.describe().bytes and it.sequence.save() == it.snapshot
        CALLS[call](it)


def test_an_allocator_that_has_nothing_is_a_memory_error():
    class Nothing(Allocator):
        def allocate(self, size, alignment):
            return None

    with pytest.raises(libkvq.KvqMemoryError):
        libkvq.Context(allocator=Nothing())
    assert no_hooks_are_left()


def test_a_released_hook_that_raises_is_heard_of():
    context = libkvq.Context(released=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        context.close()
    assert context.closed and no_hooks_are_left()


def test_parallel_for_runs_the_librarys_loops():
    loops = []
    with ThreadPoolExecutor(3) as pool, libkvq.Context() as plain:

        def parallel_for(n, body):
            loops.append(n)
            for _ in pool.map(body, range(n)):
                pass

        with libkvq.Context(parallel_for=parallel_for) as context:
            assert context.describe().n_threads == 0
            outputs = []
            for one in (plain, context):
                cache = libkvq.Cache(one, 1, 8, 1, 32, policy="int4")
                sequence = fill(cache, 3000)
                outputs.append(cache.attend(0, sequence, numpy.ones((8, 8, 32), "f4"), query_counts=[8]))
            numpy.testing.assert_array_equal(*outputs)
    assert loops and max(loops) > 1


def test_a_parallel_for_that_raises_still_gets_its_work_done():
    bodies = []

    def parallel_for(n, body):
        bodies.append(body)
        body(0)
        with pytest.raises(ValueError, match="index is 0"):
            body(0)
        with pytest.raises(ValueError, match="index is %d" % n):
            body(n)
        raise RuntimeError("enough")

    with libkvq.Context(parallel_for=parallel_for) as context, libkvq.Context() as plain:
        k, v = numpy.random.default_rng(1).standard_normal((2, 3000, 1, 32), "f4")
        q = numpy.ones((8, 8, 32), "f4")
        outputs = []
        for one in (context, plain):
            cache = libkvq.Cache(one, 1, 8, 1, 32, policy="int4")
            sequence = cache.sequence()
            with nullcontext() if one is plain else pytest.raises(RuntimeError, match="enough"):
                sequence.append(0, k, v)
            output = numpy.empty_like(q)
            with nullcontext() if one is plain else pytest.raises(RuntimeError, match="enough"):
                cache.attend(0, sequence, q, query_counts=[8], output=output)
            outputs.append(output)
        numpy.testing.assert_array_equal(*outputs)
    assert bodies
    with pytest.raises(ValueError):  # the loop is over
        bodies[0](1)


class Late:
    """Index 0, on its way into the body until it is let go."""

    def __init__(self):
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __hash__(self):
        return hash(0)

    def __eq__(self, other):
        return other == 0

    @property
    def _as_parameter_(self):  # asked for by ctypes
        self.begun.set()
        assert self.let_go.wait(20)
        return 0


@pytest.mark.parametrize("ends", ["returns", "raises", "is interrupted"])
def test_a_loop_waits_for_bodies_that_its_hook_did_not_wait_for(ends):
    """The library's loop is gone after the hook; a body that runs then would write to freed memory."""
    events, threads = [], []

    def interrupt(*_):
        events.append("interrupt")
        raise KeyboardInterrupt

    def parallel_for(n, body):
        if threads:
            return  # the library runs what a hook leaves out
        late = Late()

        def run():
            body(late)
            events.append("body")

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        assert late.begun.wait(20)
        threading.Timer(0.3, late.let_go.set).start()
        if ends == "raises":
            raise RuntimeError("enough")
        if ends == "is interrupted":
            signal.setitimer(signal.ITIMER_REAL, 0.1)

    raised = {"returns": nullcontext(), "raises": pytest.raises(RuntimeError, match="enough")}
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with libkvq.Context(parallel_for=parallel_for) as context, libkvq.Context() as plain:
            sequences = [libkvq.Cache(one, 1, 1, 1, 32, policy="int4").sequence() for one in (context, plain)]
            k = numpy.random.default_rng(1).standard_normal((3000, 1, 32), "f4")
            sequences[1].append(0, k, k)
            with raised.get(ends) or pytest.raises(KeyboardInterrupt):
                sequences[0].append(0, k, k)
            events.append("call")
            threads[0].join()
            assert events == ["interrupt"] * (ends == "is interrupted") + ["body", "call"]
            assert sequences[0].save() == sequences[1].save()
    finally:
        signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("address", ["abc", 1.5, [], -1, 1 << 64], ids=repr)
def test_an_allocator_that_returns_no_address_fails_the_call(address):
    class Wrong(Allocator):
        def allocate(self, size, alignment):
            return address

    with pytest.raises(TypeError, match="allocate returned .*, must return an address or None") as caught:
        libkvq.Context(allocator=Wrong())
    assert isinstance(caught.value.__context__, libkvq.KvqMemoryError)
    assert no_hooks_are_left()


def test_objects_that_end_inside_a_hook_wait_until_it_returns():
    """A hook may not use the context, but a garbage collection may happen in one."""
    cycles = []

    class Collecting(Allocator):
        def allocate(self, size, alignment):
            if cycles:
                cycles.clear()
                gc.collect()
            return super().allocate(size, alignment)

    allocator = Collecting()
    with libkvq.Context(allocator=allocator) as context:
        cache = libkvq.Cache(context, 1, 1, 1, 32)
        fill(cache)
        gc.collect()
        before = allocator.bytes
        cycle = [fill(cache)]
        cycle.append(cycle)
        cycles.append(cycle)
        del cycle
        other = cache.sequence()
        assert not cycles
        other.close()
        assert allocator.bytes == before


def test_progress_is_told_and_may_end_the_call(context, random):
    w = random.standard_normal((64, 128), dtype="f4")
    done = []
    libkvq.Matrix.quantize(context, w, scheme="tcq-2", progress=done.append)
    assert done == sorted(done) and 0 <= done[0] and done[-1] <= 1
    with pytest.raises(libkvq.KvqCancelledError):
        libkvq.Matrix.quantize(context, w, scheme="tcq-2", progress=lambda done: False)

    def fails(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        libkvq.Matrix.quantize(context, w, scheme="tcq-2", progress=fails)


def test_a_log_hook_gets_what_the_library_says(context):
    """The library says nothing today on a CPU, so the hook is called as the library would."""
    messages = []
    hooks = libkvq._hooks.Hooks()
    options = libkvq.raw.kvq_context_options()
    hooks.install(options, lambda *message: messages.append(message), None, None, None, None)
    options.log(None, 1, b"caf\xe9")
    assert messages == [("warning", "caf\ufffd")]
    hooks.dismiss()

    with libkvq.Context(log=lambda level, message: None) as made:
        assert made.describe().backend == "cpu"


def test_an_exception_on_another_thread_is_raised_by_the_next_call():
    hooks = libkvq._hooks.Hooks()
    failing = hooks._guarded(libkvq.raw.kvq_log_hook, None, lambda level, message: 1 / 0)
    thread = threading.Thread(target=lambda: failing(None, 0, b""))
    thread.start()
    thread.join()
    with pytest.raises(ZeroDivisionError):
        hooks.finish()
    hooks.finish()


def test_objects_that_end_inside_a_progress_hook_wait_too(random):
    allocator = Allocator()
    with libkvq.Context(allocator=allocator) as context:
        cache = libkvq.Cache(context, 1, 1, 1, 32)
        held = [fill(cache)]

        def progress(done):
            if held:
                before = allocator.bytes
                held.clear()
                assert allocator.bytes == before

        before = context.describe().bytes
        libkvq.Matrix.quantize(
            context, random.standard_normal((64, 128), dtype="f4"), "tcq-2", progress=progress
        ).close()
        assert not held and context.describe().bytes < before


@pytest.mark.parametrize("use", ["append", "length", "close", "usage"])
def test_a_hook_that_uses_what_is_in_use_fails_and_does_not_wait_for_itself(use):
    inside, used = [], []

    class Using(Allocator):
        def allocate(self, size, alignment):
            for function in inside:
                used.append(function)
                function()
            return super().allocate(size, alignment)

    k = numpy.ones((100, 1, 32), "f4")
    with libkvq.Context(allocator=Using()) as context:
        cache = libkvq.Cache(context, 1, 1, 1, 32)
        sequence = cache.sequence()
        calls = {
            "append": lambda: sequence.append(0, k, k),
            "length": lambda: sequence.length(0),
            "close": sequence.close,
            "usage": cache.usage,
        }
        inside.append(calls[use])
        with pytest.raises(RuntimeError, match="a hook may not use this Sequence, which is in use"):
            sequence.append(0, k, k)
        assert used
        inside.clear()
        sequence.append(0, k, k)
        assert sequence.length(0) == 100
