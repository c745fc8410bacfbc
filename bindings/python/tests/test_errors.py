"""Failures: their classes, messages, and that nothing crashes."""

import numpy
import pytest

import libkvq


def test_a_failure_tells_status_and_argument(context):
    with pytest.raises(libkvq.KvqError) as caught:
        libkvq.Cache(context, n_layers=1, q_heads=4, kv_heads=2, head_dim=33)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, RuntimeError)
    assert "head_dim is 33" in str(caught.value)
    assert caught.value.status == libkvq.raw.KVQ_E_ARGUMENT
    assert caught.value.status_name == "KVQ_E_ARGUMENT"
    assert caught.value.backend_code == 0


def test_statuses_are_pythons_own_exceptions_where_it_has_them(context):
    cases = [
        (lambda: libkvq.Policy(context, "int5"), libkvq.KvqFormatError, ValueError),
        (lambda: libkvq.Context(max_bytes=10), libkvq.KvqLimitError, MemoryError),
        (lambda: libkvq.Context(cpu_isa="abacus"), libkvq.KvqUnsupportedError, NotImplementedError),
        (lambda: libkvq.device_describe(plugin="/nowhere.so"), libkvq.KvqUnsupportedError, NotImplementedError),
        (lambda: context.set_stream(0), libkvq.KvqUnsupportedError, NotImplementedError),
        (lambda: libkvq.Context(n_threads=0), libkvq.KvqArgumentError, ValueError),
        (lambda: libkvq.Codebook.load(context, b"no"), libkvq.KvqFormatError, ValueError),
        (lambda: libkvq.Router.load(context, b"no"), libkvq.KvqFormatError, ValueError),
        (lambda: libkvq.Cache(context, 1, 2, 1, 8, policy="commvq"), libkvq.KvqArgumentError, ValueError),
    ]
    for function, kind, base in cases:
        with pytest.raises(kind) as caught:
            function()
        assert isinstance(caught.value, base) and str(caught.value)


def test_every_status_has_a_class():
    for status in libkvq.raw.kvq_status:
        if status < 0:
            made = libkvq._errors.failure(int(status), libkvq._errors.new_error())
            assert made.status == status and made.status_name == status.name
            assert status == libkvq.raw.KVQ_E_INTERNAL or type(made) is not libkvq.KvqError


def test_messages_that_are_no_utf8_are_shown_anyway():
    error = libkvq._errors.new_error()
    error.message = b"caf\xe9"
    assert str(libkvq._errors.failure(-1, error)) == "caf\ufffd"


def test_names_are_checked(context):
    with pytest.raises(ValueError, match="device is 'tpu', must be one of 'cpu', 'cuda'"):
        libkvq.Context(device="tpu")
    with pytest.raises(ValueError, match="rope is 'full', must be one of 'none', 'half', 'interleaved'"):
        libkvq.Cache(context, 1, 2, 1, 8, rope="full")
    with pytest.raises(ValueError, match="cpu_isa contains a NUL"):
        libkvq.Context(cpu_isa="avx2\0")
    with pytest.raises(TypeError, match="method is int, must be str"):
        libkvq.Policy(context, "int4").with_eviction(4, 4)
    with pytest.raises(ValueError, match="yaml contains a NUL"):
        libkvq.Policy(context, "int4\0")
    with pytest.raises(TypeError, match="yaml is int, must be str"):
        libkvq.Policy(context, 4)
    with pytest.raises(TypeError, match="stream is str"):
        libkvq.Context(stream="0")


def test_what_is_closed_says_so(cache, filled):
    policy = libkvq.Policy(cache.context, "int4")
    matrix = libkvq.Matrix.quantize(cache.context, numpy.ones((4, 64), "f4"))
    fork = filled.fork()
    for one in (fork, policy, matrix):
        assert not one.closed
        one.close()
        one.close()
        assert one.closed and "closed" in repr(one)
    k = numpy.zeros((1, 2, 32), "f4")
    uses = [
        (lambda: fork.append(0, k, k), "Sequence"),
        (lambda: fork.save(), "Sequence"),
        (lambda: fork.length(0), "Sequence"),
        (lambda: fork.fork(), "Sequence"),
        (lambda: fork.decode(0, 0), "Sequence"),
        (lambda: fork.truncate(0), "Sequence"),
        (lambda: cache.attend(0, [filled, fork], numpy.zeros((2, 4, 32), "f4")), "Sequence"),
        (lambda: policy.describe(), "Policy"),
        (lambda: libkvq.Cache(cache.context, 1, 2, 1, 8, policy=policy), "Policy"),
        (lambda: matrix.linear(numpy.ones((1, 64), "f4")), "Matrix"),
        (lambda: libkvq.linear_shared([matrix], numpy.ones((1, 64), "f4")), "Matrix"),
        (lambda: libkvq.save_matrices({"a": matrix}), "Matrix"),
    ]
    for function, name in uses:
        with pytest.raises(ValueError, match="this %s is closed" % name):
            function()
    filled.append(0, k, k)  # the failed calls left nothing locked
    cache.attend(0, filled, numpy.zeros((1, 4, 32), "f4"))
    filled.close()
    cache.close()
    with pytest.raises(ValueError, match="this Cache is closed"):
        cache.sequence()


def test_objects_may_end_in_any_order(random):
    context = libkvq.Context()
    policy = libkvq.Policy(context, "int4")
    cache = libkvq.Cache(context, 1, 2, 1, 8, policy=policy)
    sequence = cache.sequence()
    fork = sequence.fork()
    context.close()
    policy.close()
    k = random.standard_normal((40, 1, 8), dtype="f4")
    sequence.append(0, k, k)
    sequence.close()
    assert fork.length(0) == 0
    fork.append(0, k, k)
    assert cache.attend(0, fork, numpy.zeros((1, 2, 8), "f4")).shape == (1, 2, 8)
    with pytest.raises(ValueError, match="this Context is closed"):
        libkvq.Policy(context, "int4")


def test_a_failed_call_leaves_objects_as_they_were(cache, filled):
    before = filled.save()
    k = numpy.full((3, 2, 32), 1, "f4")
    k[2, 1, 5] = numpy.nan
    with pytest.raises(libkvq.KvqArgumentError):
        filled.append(0, k, k)
    with pytest.raises(libkvq.KvqArgumentError, match="layer is 2"):
        filled.append(2, k[:1], k[:1])
    with pytest.raises(libkvq.KvqArgumentError, match=r"sequences\[1\] is batch->sequences\[0\] again"):
        cache.append(0, [filled, filled], k[:2], k[:2])
    other = libkvq.Cache(cache.context, 2, 4, 2, 32).sequence()
    with pytest.raises(libkvq.KvqArgumentError, match="another cache"):
        cache.append(0, other, k[:1], k[:1])
    q = numpy.ones((1, 4, 32), "f4")
    with pytest.raises(libkvq.KvqArgumentError, match=r"^q has the shape \[2, 4, 32\], must be \[1, 4, 32\]"):
        cache.extend(0, filled, k[:1], k[:1], numpy.repeat(q, 2, axis=0))
    with pytest.raises(libkvq.KvqArgumentError, match="not finite|65504"):
        cache.extend(0, filled, k[2:], k[2:], q)
    empty = (
        lambda: cache.append(0, [], k, k),
        lambda: cache.attend(0, [], q[:0]),
        lambda: cache.extend(0, [], k[:0], k[:0], q[:0]),
    )
    for function in empty:
        with pytest.raises(libkvq.KvqArgumentError, match="sequences is empty"):
            function()
    assert filled.save() == before


def test_numbers_that_c_would_cut_off_are_refused_by_name(cache, filled):
    big = (1 << 32) + 1
    k, q = numpy.zeros((1, 2, 32), "f4"), numpy.zeros((1, 4, 32), "f4")
    refused = [
        (lambda: filled.truncate(big), "length is 4294967297, must fit into 32 bits"),
        (lambda: filled.length(big), "layer is 4294967297"),
        (lambda: filled.append(big, k, k), "layer is 4294967297"),
        (lambda: filled.slots(0, -big), "kv_head is -4294967297"),
        (lambda: filled.compress(big), "budget is 4294967297"),
        (lambda: cache.attend(big, filled, q), "layer is 4294967297"),
        (lambda: cache.attend(0, filled, q, sliding_window=big), "sliding_window is 4294967297"),
        (lambda: cache.extend(big, filled, k, k, q), "layer is 4294967297"),
        (lambda: cache.extend(0, filled, k, k, q, sliding_window=big), "sliding_window is 4294967297"),
        (lambda: libkvq.Context(n_threads=big), "n_threads is 4294967297"),
        (lambda: libkvq.Context(max_bytes=-1), "max_bytes is -1, must fit into 64 bits"),
        (lambda: libkvq.Cache(cache.context, big, 1, 1, 8), "n_layers is 4294967297"),
        (lambda: libkvq.Policy(cache.context, "int4").with_eviction("h2o", big), "budget is 4294967297"),
        (lambda: libkvq.Policy(cache.context, "int4").with_layer(big, 0), "first_layer is 4294967297"),
        (lambda: cache.predict_usage(big, 1), "sequences is 4294967297"),
        (lambda: libkvq.device_describe(index=big), "index is 4294967297"),
    ]
    before = filled.save()
    for function, message in refused:
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            function()
    assert filled.save() == before
