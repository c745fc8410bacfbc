"""libkvq.transformers on a GPU: tensors of torch stay where they are, on torch's stream."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402
from transformers_models import (  # noqa: E402
    CODEBOOK,
    KINDS,
    MOQAE,
    ROUTER,
    HalfCache,
    demo,
    demo_tokens,
    divergence,
    generated,
    logits_in_pieces,
    small,
    small_tokens,
    using,
)

import libkvq  # noqa: E402
from libkvq.transformers import KvqCache  # noqa: E402


def _missing():
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    try:
        libkvq.device_describe("cuda")
    except libkvq.KvqUnsupportedError as error:
        return str(error)
    return None


pytestmark = pytest.mark.skipif(_missing() is not None, reason=str(_missing()))


@pytest.fixture(autouse=True)
def exact_products():
    """FP32 products as FP32: with TF32 both sides would round."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture(scope="module")
def model():
    return demo().cuda()


def tokens_of_demo(n, begin=0):
    return demo_tokens(n, begin).cuda()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_eager_attention_over_rounded_keys_and_values(kind):
    model, reference = small(kind).cuda(), small(kind, "eager").cuda()
    tokens = small_tokens(2, 150).cuda()
    pieces = [70, 30] + [1] * 50
    expected = logits_in_pieces(reference, tokens, HalfCache(model.config), pieces)
    ours = logits_in_pieces(model, tokens, KvqCache("fp16"), pieces)
    assert float((ours - expected).abs().max()) < 1e-2 * float(expected.abs().max())  # FP16 queries and probabilities.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_long_text_is_read_as_with_transformers_own_cache(dtype):
    tokens = tokens_of_demo(1200)
    pieces = [1000, 100] + [1] * 100
    ours = logits_in_pieces(demo(dtype=dtype).cuda(), tokens, KvqCache("fp16"), pieces)
    own = logits_in_pieces(demo("sdpa", dtype=dtype).cuda(), tokens, DynamicCache(), pieces)
    assert divergence(own, ours) < (1e-5 if dtype == torch.float32 else 1e-3)


def test_the_likeliest_tokens_are_those_of_transformers_own_cache(model):
    tokens = tokens_of_demo(500)
    reply = generated(demo("sdpa").cuda(), tokens, 128)
    text = torch.cat([tokens, reply], dim=1)
    logits = logits_in_pieces(model, text, KvqCache("fp16"), [500] + [1] * 128)[0, 499:-1]
    behind = logits.max(dim=-1).values - logits.gather(1, reply[0, :, None])[:, 0]
    assert float(behind.max()) < 0.01


def test_rows_with_padding_and_beams_give_what_they_give_on_the_cpu(model):
    on_cpu = demo()
    tokens = torch.cat([demo_tokens(100), demo_tokens(100, 300)])
    mask = torch.ones_like(tokens)
    mask[0, :63] = 0
    text = torch.cat([tokens, demo_tokens(60, 900).expand(2, 60)], dim=1)
    whole = torch.cat([mask, torch.ones((2, 60), dtype=mask.dtype)], dim=1)
    results = []
    for one, device in ((model, "cuda"), (on_cpu, "cpu")):
        cache, parts = KvqCache("int4+hadamard"), []
        for begin, end in [(0, 100)] + [(i, i + 1) for i in range(100, 160)]:
            with torch.no_grad():
                inputs = {"attention_mask": whole[:, :end].to(device), **using(cache)}
                parts.append(one(text[:, begin:end].to(device), **inputs).logits.cpu())
        assert [row.length(5) for row in cache.sequences] == [97, 160]
        results.append(torch.cat(parts, dim=1)[whole.bool()])
    assert divergence(results[1], results[0]) < 1e-3
    options = {"num_beams": 3, "min_new_tokens": 0}
    ours = generated(model, tokens[1:].cuda(), 24, KvqCache("fp16"), **options).cpu()
    assert torch.equal(ours, generated(on_cpu, tokens[1:], 24, KvqCache("fp16"), **options))


def test_work_follows_torchs_current_stream(model):
    tokens = tokens_of_demo(400)
    expected = logits_in_pieces(model, tokens, KvqCache("int4"), [300] + [1] * 100)
    cache = KvqCache("int4")
    parts = [logits_in_pieces(model, tokens[:, :300], cache, [300])]
    for i in range(300, 400):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            parts.append(logits_in_pieces(model, tokens[:, i : i + 1], cache, [1]))
        torch.cuda.current_stream().wait_stream(stream)
    assert torch.allclose(torch.cat(parts, dim=1), expected, atol=1e-5)


def test_compressed_caches_stay_close_and_take_the_bytes_they_say(model):
    tokens = tokens_of_demo(1024)
    pieces = [768] + [1] * 256
    exact = logits_in_pieces(model, tokens, KvqCache("fp16"), pieces)[:, 768:]
    divergences = {}
    for policy, most in (("int8", 10), ("int4+hadamard", 6), ("int2+hadamard", 4)):
        cache = KvqCache(policy)
        divergences[policy] = divergence(exact, logits_in_pieces(model, tokens, cache, pieces)[:, 768:])
        usage = cache.usage()
        assert usage.scalars == 1024 * 2 * 128 * 2 * 6
        assert usage.bits_per_scalar < most
    assert divergences["int8"] < divergences["int4+hadamard"] < 0.05
    assert divergences["int4+hadamard"] < divergences["int2+hadamard"] < 1.5


def test_a_cache_saved_on_a_gpu_continues_on_the_cpu(model):
    tokens = tokens_of_demo(300)
    cache = KvqCache("int4+hadamard")
    logits_in_pieces(model, tokens[:, :250], cache, [250])
    data = cache.save()
    on_gpu = logits_in_pieces(model, tokens[:, 250:], cache, [50])
    on_cpu = logits_in_pieces(demo(), tokens[:, 250:].cpu(), KvqCache.load(data, policy="int4+hadamard"), [50])
    # A CPU rounds queries to 8 bits for integer pages, a GPU to FP16.
    assert divergence(on_cpu, on_gpu.cpu()) < 1e-3
    back = KvqCache.load(data, device="cuda", policy="int4+hadamard")
    assert torch.equal(on_gpu, logits_in_pieces(model, tokens[:, 250:], back, [50]))


def test_a_cache_stays_on_its_device(model):
    tokens = demo_tokens(40)
    cache = KvqCache("fp16")
    logits_in_pieces(model, tokens.cuda(), cache, [40])
    with pytest.raises(ValueError, match="cuda:0.*cpu"):
        logits_in_pieces(demo(), tokens, cache, [40])


@pytest.mark.parametrize(
    "options",
    [{"policy": "int4+snapkv:64"}, {"policy": "commvq", "codebook": CODEBOOK}, {"policy": MOQAE, "router": ROUTER}],
    ids=["evicting", "coded", "routed"],
)
def test_what_was_trained_or_evicts_does_the_same_on_both_devices(model, options):
    tokens = tokens_of_demo(300)
    pieces = [250] + [1] * 50
    on_gpu = logits_in_pieces(model, tokens, KvqCache(**options), pieces)
    on_cpu = logits_in_pieces(demo(), tokens.cpu(), KvqCache(**options), pieces)
    # Each rounds queries in its own way.
    assert divergence(on_cpu, on_gpu.cpu()) < 1e-2
