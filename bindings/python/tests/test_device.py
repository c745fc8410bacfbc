"""Contexts of a device, on the pretended one of tests/plugins: it allocates and has streams, but computes nothing."""

import os

import numpy
import pytest
from conftest import ROOT

import libkvq
from libkvq._arrays import empty_like, rows_of


@pytest.fixture(scope="module")
def plugin():
    built = sorted(str(one) for one in ROOT.glob("build/*/tests/plugins/pretend.so"))
    for path in [os.environ.get("LIBKVQ_TEST_PRETEND"), *built]:
        try:
            if path:
                libkvq.device_describe(plugin=path)
                return path
        except libkvq.KvqUnsupportedError:
            pass  # of another version, or built with sanitizers
    pytest.skip("the plug-in of a pretended device has not been built")


class Allocator:
    """Addresses that nobody reads."""

    def __init__(self, result=1 << 20):
        self.result, self.calls = result, []

    def allocate(self, size, stream):
        self.calls.append(("allocate", size, stream))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def free(self, address, size, stream):
        self.calls.append(("free", address, size, stream))


def test_a_device_tells_what_it_is(plugin):
    info = libkvq.device_describe("cuda", 1, plugin)
    assert (info.name, info.n_devices, info.memory_bytes) == ("Pretend 1", 2, 5 << 30)
    with pytest.raises(libkvq.KvqUnsupportedError, match="no pretend device 2"):
        libkvq.device_describe("cuda", 2, plugin)


def test_streams_and_device_memory_reach_the_hooks(plugin):
    class Torch:
        cuda_stream = 0x1000

    class CuPy:
        ptr = 0x2000

    class Protocol:
        def __cuda_stream__(self):
            return (0, 0x3000)

    allocator = Allocator()
    with libkvq.Context("cuda", plugin=plugin, device_index=1, stream=Torch(), device_allocator=allocator) as context:
        assert context.device == "cuda:1" and context.describe().isa == "pretend_1"
        assert context.describe().backend == "pretend" and context.describe().device == "cuda"
        assert allocator.calls == [("allocate", 512, 0x1000)]
        for stream in (CuPy(), 0x4000, Protocol()):
            context.set_stream(stream)
        with pytest.raises(libkvq.KvqBackendError):  # this device has no default stream
            context.set_stream(None)
    assert allocator.calls[1:] == [("free", 1 << 20, 512, 0x3000)]


def test_a_device_allocator_may_fail(plugin):
    with pytest.raises(libkvq.KvqMemoryError, match="device_allocate returned NULL for 512 bytes"):
        libkvq.Context("cuda", plugin=plugin, device_allocator=Allocator(None))
    with pytest.raises(ArithmeticError, match="too much"):
        libkvq.Context("cuda", plugin=plugin, device_allocator=Allocator(ArithmeticError("too much")))


def test_what_the_device_reports_is_told(plugin):
    allocator = Allocator()
    with libkvq.Context("cuda", plugin=plugin, device_allocator=allocator) as context:
        with pytest.raises(libkvq.KvqBackendError, match="computes nothing") as caught:
            libkvq.Cache(context, 1, 1, 1, 8)
        assert (caught.value.backend_code, caught.value.status_name) == (77, "KVQ_E_BACKEND")
    assert [name for name, *_ in allocator.calls] == ["allocate", "free"]


def test_arrays_must_be_on_the_contexts_device():
    """The check alone: no cache can be made on the pretended device."""
    host = numpy.zeros((1, 1, 8), "f4")
    other = libkvq.DevicePointer(4096, (1, 1, 8))
    here = libkvq.DevicePointer(4096, (1, 1, 8), "f16", device_index=1)
    for k, message in (
        (host, "k is in host memory, must be in cuda:1, where the context computes"),
        (other, "k is in cuda:0, must be in cuda:1, where the context computes"),
    ):
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            rows_of("k", k, None, 1, 1, 1, 8)
    assert rows_of("k", here, None, 1, None, 1, 8)[:5] == (4096, 0, 0, libkvq.raw.KVQ_F16, 1)
    with pytest.raises(TypeError, match="pass output="):
        empty_like(here, (1, 1, 8))
