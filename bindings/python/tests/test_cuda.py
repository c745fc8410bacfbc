"""On an NVIDIA GPU; skipped, with the reason, where there is none."""

import numpy
import pytest

import libkvq
from libkvq import experimental


@pytest.fixture(scope="module")
def torch():
    try:
        info = libkvq.device_describe()
    except libkvq.KvqUnsupportedError as error:
        pytest.skip(str(error))
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    assert info.n_devices >= 1 and info.memory_bytes > 0 and info.name
    return torch


@pytest.fixture
def gpu(torch):
    with libkvq.Context(device="cuda", stream=torch.cuda.current_stream()) as context:
        yield context


@pytest.mark.parametrize("policy", ["fp16", "int8", "int4+hadamard", "int2"])
def test_attention_on_a_gpu_is_close_to_that_of_the_cpu(torch, gpu, random, policy):
    cache = libkvq.Cache(gpu, 1, 4, 2, 64, policy=policy)
    exact = libkvq.Context(cpu_isa=libkvq.cpu_isas()[-1])  # others round queries to 8 bits
    on_cpu = libkvq.Cache(exact, 1, 4, 2, 64, policy=policy)
    assert gpu.device == "cuda:0" and gpu.describe().backend == "cuda"
    sequence = cache.sequence()
    fused = torch.from_numpy(random.standard_normal((100, 8, 64), dtype="f4")).cuda()
    q = fused[-1:, :4]
    sequence.append(0, fused[:, 4:6], fused[:, 6:])
    output, lse = cache.attend(0, sequence, q, lse=True)
    assert output.is_cuda and lse.is_cuda
    expected, expected_lse = on_cpu.attend(0, on_cpu.load_sequence(sequence.save()), q.cpu().numpy(), lse=True)
    numpy.testing.assert_allclose(output.cpu(), expected, atol=5e-3)
    numpy.testing.assert_allclose(lse.cpu(), expected_lse, atol=5e-3)


def test_halves_streams_and_snapshots(torch, gpu, random):
    cache = libkvq.Cache(gpu, 1, 4, 2, 64, policy="int4")
    stream = torch.cuda.Stream()
    gpu.set_stream(stream)
    k = torch.from_numpy(random.standard_normal((70, 2, 64), dtype="f4")).cuda().bfloat16()
    torch.cuda.synchronize()
    sequence = cache.sequence()
    sequence.append(0, k, k)
    q = k[:1].repeat(1, 2, 1)
    output = cache.attend(0, sequence, q)
    torch.cuda.synchronize()
    assert output.dtype == torch.bfloat16 and torch.isfinite(output).all()
    data = sequence.save()
    assert cache.load_sequence(data).save() == data
    with libkvq.Context() as cpu:
        assert libkvq.Cache(cpu, 1, 4, 2, 64, policy="int4").load_sequence(data).save() == data


def test_device_pointers_and_interfaces_are_the_same_memory(torch, gpu, random):
    cache = libkvq.Cache(gpu, 1, 2, 2, 64)
    k = torch.from_numpy(random.standard_normal((5, 2, 64), dtype="f4")).cuda()

    class Interface:
        __cuda_array_interface__ = k.__cuda_array_interface__

    class DLPack:
        def __dlpack__(self):
            return k.__dlpack__()

        def __dlpack_device__(self):
            return k.__dlpack_device__()

    snapshots = []
    for one in (k, libkvq.DevicePointer(k.data_ptr(), (5, 2, 64)), Interface(), DLPack()):
        sequence = cache.sequence()
        sequence.append(0, one, one)
        snapshots.append(sequence.save())
    assert len(set(snapshots)) == 1


def test_host_memory_is_refused_by_name(torch, gpu):
    sequence = libkvq.Cache(gpu, 1, 2, 2, 64).sequence()
    k = numpy.zeros((1, 2, 64), "f4")
    with pytest.raises(libkvq.KvqArgumentError, match="k is in host memory, must be in cuda:0"):
        sequence.append(0, k, k)


def test_device_memory_comes_from_the_hook(torch, random):
    held = {}

    class Allocator:
        def allocate(self, size, stream):
            block = torch.empty(size, dtype=torch.uint8, device="cuda")
            held[block.data_ptr()] = block
            return block.data_ptr()

        def free(self, address, size, stream):
            assert held.pop(address).numel() == size

    with libkvq.Context(device="cuda", device_allocator=Allocator()) as context:
        cache = libkvq.Cache(context, 1, 2, 2, 64)
        k = torch.zeros((5, 2, 64), device="cuda")
        sequence = cache.sequence()
        sequence.append(0, k, k)
        assert held
        sequence.close()
        cache.close()
    assert not held


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_matrices_multiply_on_a_gpu(torch, gpu, random, dtype):
    matrix = libkvq.Matrix.quantize(gpu, random.standard_normal((64, 128), dtype="f4"), scheme="tcx-3")
    x = torch.tensor(random.standard_normal((3, 128), dtype="f4"), device="cuda").to(getattr(torch, dtype))
    y = matrix.linear(x)
    assert y.device == x.device and y.dtype == x.dtype
    expected = x.float().cpu() @ torch.as_tensor(matrix.dequantize()).T
    assert torch.allclose(y.float().cpu(), expected, rtol=0.01, atol=0.05)


def test_what_a_gpu_measured_is_a_text_that_another_context_goes_by(gpu, random):
    matrix = libkvq.Matrix.quantize(gpu, random.standard_normal((128, 256), dtype="f4"), "nuq-2")
    before = experimental.save_tuning(gpu)
    experimental.tune([matrix], 3)
    text = experimental.save_tuning(gpu)
    assert text.startswith(before) and "\tnuq-2\t128\t256\t3\t" in text
    experimental.tune([matrix], 3)  # known: nothing is measured
    assert experimental.save_tuning(gpu) == text
    with libkvq.Context(device="cuda") as other:
        with pytest.raises(libkvq.KvqFormatError, match="line 4"):
            experimental.load_tuning(other, text + "nothing\n")
        with pytest.raises(libkvq.KvqMismatchError, match="kvq tuning 0"):
            experimental.load_tuning(other, "kvq tuning 0\n")
        assert experimental.save_tuning(other) == before
        experimental.load_tuning(other, text)
        assert experimental.save_tuning(other) == text
