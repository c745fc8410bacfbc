"""libkvq.transformers beside transformers' own cache: the same models, the same tokens."""

import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import PreTrainedTokenizerFast  # noqa: E402
from transformers_models import (  # noqa: E402
    CODEBOOK,
    DEMO,
    KINDS,
    MOQAE,
    ROUTER,
    HalfCache,
    demo,
    demo_tokens,
    divergence,
    generated,
    logits_in_pieces,
    own_cache,
    small,
    small_tokens,
    using,
)

import libkvq  # noqa: E402
from libkvq.transformers import KvqCache, snapshot  # noqa: E402


@pytest.fixture(scope="module")
def demo_model():
    return demo()


@pytest.fixture(scope="module")
def demo_reference():
    return demo("sdpa")


def program():
    """The `kvq` program, installed beside the library."""
    beside = pathlib.Path(os.environ.get("LIBKVQ_LIBRARY", "")).resolve().parent.parent / "bin" / "kvq"
    found = str(beside) if beside.is_file() else shutil.which("kvq")
    return found or pytest.skip("the kvq program is not installed beside the library")


# ------------------------------------------------------------------------------------------------------ the same tokens


def runner_tokens(prompt, kv):
    command = [program(), "generate", "--model", DEMO, "--prompt", prompt, "--max-tokens", "100", "--json", "--kv", kv]
    runner = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DEMO / "tokenizer.json"))
    tokens = torch.tensor([[1, *tokenizer(prompt).input_ids]])  # The runner begins every text with a token of its own.
    assert tokens.shape[1] == runner["prompt_tokens"] < 32  # The prompt lies in one FP16 page.
    return tokens, torch.tensor([runner["tokens"]])


def test_the_demo_model_generates_what_the_librarys_own_runner_generates(demo_model):
    for prompt in ("It was the best of times, it was the", "In the year 1850 a ship"):
        tokens, expected = runner_tokens(prompt, "fp16")
        assert torch.equal(generated(demo_model, tokens, 100, KvqCache("fp16")), expected)


@pytest.mark.parametrize(
    "kv, options",
    [
        ("int4+hadamard", {"policy": "int4+hadamard"}),
        ("int2", {"policy": "int2"}),
        (f"commvq:{CODEBOOK}", {"policy": "commvq", "codebook": CODEBOOK}),
        (f"moqae:{ROUTER}", {"policy": MOQAE, "router": ROUTER}),
    ],
    ids=["int4+hadamard", "int2", "commvq", "moqae"],
)
def test_compressed_caches_hold_what_those_of_the_runner_hold(demo_model, kv, options):
    """Rounding, which differs between processors, can turn a code over, and then a token; given the same text, hardly
    any differ, and those by little beside what compression does."""
    tokens, reply = runner_tokens("In the year 1850 a ship", kv)
    text = torch.cat([tokens, reply], dim=1)
    pieces = [tokens.shape[1]] + [1] * reply.shape[1]

    def logits_with(cache):
        return logits_in_pieces(demo_model, text, cache, pieces)[0, tokens.shape[1] - 1 : -1]

    logits = logits_with(KvqCache(**options))
    behind = logits.max(dim=-1).values - logits.gather(1, reply[0, :, None])[:, 0]
    assert float(behind.max()) < 0.25 * float((logits - logits_with(KvqCache("fp16"))).abs().max())
    assert int((behind > 0).sum()) <= 2


def test_two_thousand_tokens_of_prompt_continue_as_with_transformers_own_cache(demo_model, demo_reference):
    tokens = demo_tokens(2048)
    cache = KvqCache("fp16")
    ours = generated(demo_model, tokens, 256, cache)
    assert torch.equal(ours, generated(demo_reference, tokens, 256))
    assert cache.get_seq_length() == 2048 + 255


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_eager_attention_over_rounded_keys_and_values(kind):
    model, reference = small(kind), small(kind, "eager")
    tokens = small_tokens(2, 150)
    pieces = [70, 30] + [1] * 50
    expected = logits_in_pieces(reference, tokens, HalfCache(model.config), pieces)
    ours = logits_in_pieces(model, tokens, KvqCache("fp16"), pieces)
    scale = float(expected.abs().max())
    assert float((ours - expected).abs().max()) < 2e-4 * scale
    plain = logits_in_pieces(reference, tokens, own_cache(model.config), pieces)
    assert float((ours - plain).abs().max()) < 2e-2 * scale


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if "window" in kind or kind.startswith(("gemma3 with", "gpt-oss"))]
)
def test_layers_with_a_window_free_what_no_token_sees(kind):
    model, reference = small(kind), small(kind, "eager")
    tokens = small_tokens(2, 500)
    pieces = [70, 130] + [50] * 5 + [1] * 50
    policy = {"recent": 3}
    cache = KvqCache(policy)
    ours = logits_in_pieces(model, tokens, cache, pieces)
    expected = logits_in_pieces(reference, tokens, HalfCache(model.config), pieces)
    assert float((ours - expected).abs().max()) < 2e-4 * float(expected.abs().max())
    row = cache.sequences[0]
    windows = [row.cache.describe_layer(layer).sliding_window for layer in range(model.config.num_hidden_layers)]
    held = [row.slots(layer, 0) for layer in range(len(windows))]
    assert any(windows)
    for window, slots in zip(windows, held):
        assert slots <= window + 64 + 64 if window else slots == 500
    cache.crop(-40)
    again = logits_in_pieces(model, tokens[:, 460:], cache, [40])
    assert float((again - ours[:, 460:]).abs().max()) < 2e-4 * float(expected.abs().max())
    loaded = KvqCache.load(cache.save(), policy=policy)
    assert loaded.save() == cache.save()
    with pytest.raises(RuntimeError, match="has freed tokens"):
        cache.crop(-200)


def test_layers_may_have_scales_of_their_own():
    model, reference = small("llama"), small("llama", "eager")
    for one in (model, reference):
        one.model.layers[1].self_attn.scaling *= 3
    tokens = small_tokens(1, 60)
    ours = logits_in_pieces(model, tokens, KvqCache("fp16"), [40] + [1] * 20)
    expected = logits_in_pieces(reference, tokens, HalfCache(), [40] + [1] * 20)
    assert torch.allclose(ours, expected, atol=2e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("policy", ["fp16", {"keys": "int4+hadamard", "values": "int4", "recent": 2}])
def test_rows_with_padding_on_the_left_get_what_they_get_alone(demo_model, policy):
    lengths = [100, 37, 64, 1]
    tokens = torch.zeros((4, 100), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        tokens[row, 100 - length :] = demo_tokens(length, 200 * row)
        mask[row, 100 - length :] = 1
    cache = KvqCache(policy)
    together = generated(demo_model, tokens, 40, cache, attention_mask=mask)
    for row, length in enumerate(lengths):
        assert cache.sequences[row].length(0) == length + 39
        alone = generated(demo_model, tokens[row : row + 1, 100 - length :], 40, KvqCache(policy))
        assert torch.equal(together[row : row + 1], alone)


@torch.no_grad()
def test_padding_on_the_right_and_in_chunks_never_enters_the_cache(demo_model):
    tokens = demo_tokens(60)
    mask = torch.ones((2, 60), dtype=torch.long)
    mask[0, 50:] = 0
    mask[1, :45] = 0
    tokens = torch.cat([tokens, tokens.roll(45, dims=1)])
    cache = KvqCache("fp16")
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = [
        demo_model(
            tokens[:, begin : begin + 20],
            attention_mask=mask[:, : begin + 20],
            position_ids=positions[:, begin : begin + 20],
            **using(cache),
        ).logits
        for begin in (0, 20, 40)
    ]
    logits = torch.cat(logits, dim=1)
    assert [row.length(5) for row in cache.sequences] == [50, 15]
    alone = demo_model(tokens[:1, :50], **using(KvqCache("fp16"))).logits
    assert torch.allclose(logits[0, :50], alone[0], atol=2e-2)
    alone = demo_model(tokens[1:, 45:], **using(KvqCache("fp16"))).logits
    assert torch.allclose(logits[1, 45:], alone[0], atol=2e-2)


@pytest.mark.parametrize("policy", ["fp16", "int4+hadamard"])
def test_a_prompt_in_chunks_gives_what_it_gives_in_one_piece(demo_model, policy):
    tokens = demo_tokens(256)
    whole = logits_in_pieces(demo_model, tokens, KvqCache(policy), [256])
    chunks = logits_in_pieces(demo_model, tokens, KvqCache(policy), [100, 28, 1, 127])
    assert divergence(whole, chunks) < (1e-6 if policy == "fp16" else 5e-3)
    if policy == "fp16":
        once = generated(demo_model, tokens, 32, KvqCache(policy))
        assert torch.equal(once, generated(demo_model, tokens, 32, KvqCache(policy), prefill_chunk_size=50))


@pytest.mark.parametrize("policy", ["int2", "gs2"])
def test_a_chunk_attends_to_its_own_tokens_as_they_are_given(demo_model, policy):
    tokens = demo_tokens(160)
    pieces = [20, 140]  # The first one does not fill a page, so that nothing coarser than FP16 is stored.
    exact = logits_in_pieces(demo_model, tokens, KvqCache("fp16"), pieces)
    cache = KvqCache(policy)
    assert divergence(exact, logits_in_pieces(demo_model, tokens, cache, pieces)) < 1e-6
    assert cache.usage().sealed_pages >= 3 * 2 * 6  # pages, KV heads, layers


def test_beam_search_finds_what_it_finds_with_transformers_own_cache(demo_model, demo_reference):
    tokens = torch.cat([demo_tokens(120), demo_tokens(120, 500)])
    options = {"num_beams": 4, "num_return_sequences": 2, "min_new_tokens": 0}
    cache = KvqCache("fp16")
    ours = generated(demo_model, tokens, 48, cache, **options)
    assert torch.equal(ours, generated(demo_reference, tokens, 48, **options))
    assert cache.batch_size == 8
    assert cache.usage().shared_pages > 0


@pytest.mark.parametrize("lookup", [True, False], ids=["prompt lookup", "assistant"])
def test_assisted_generation_gives_what_plain_generation_gives(demo_model, demo_reference, lookup):
    tokens = demo_tokens(300)
    options = {"prompt_lookup_num_tokens": 8} if lookup else {"assistant_model": demo_reference}
    policy = {"keys": "fp16", "values": "fp16", "recent": 2}
    plain = generated(demo_model, tokens, 80, KvqCache(policy))
    cache = KvqCache(policy)
    assert torch.equal(plain, generated(demo_model, tokens, 80, cache, **options))
    assert cache.get_seq_length() == cache.sequences[0].length(0)
    compressed = KvqCache({"keys": "int4", "values": "int4", "recent": 2})
    assert generated(demo_model, tokens, 80, compressed, **options).shape == (1, 80)


# --------------------------------------------------------------------------------------------------- compressed formats


def test_compressed_caches_stay_close_to_the_full_one_and_take_the_bytes_they_say(demo_model):
    tokens = demo_tokens(1024)
    pieces = [768] + [64] * 4  # What follows the prompt sees compressed pages.
    exact = logits_in_pieces(demo_model, tokens, KvqCache("fp16"), pieces)[:, 768:]
    divergences, bits = {}, {}
    for policy in ("int8", "int4+hadamard", "int2+hadamard"):
        cache = KvqCache(policy)
        divergences[policy] = divergence(exact, logits_in_pieces(demo_model, tokens, cache, pieces)[:, 768:])
        usage = cache.usage()
        assert usage.scalars == 1024 * 2 * 128 * 2 * 6  # tokens, KV heads, channels, keys and values, layers
        assert usage.plain_fp16_bytes == 2 * usage.scalars
        assert usage.fp16_pages == 2 * 6 and usage.sealed_pages == 31 * 2 * 6
        rows = cache.usage(0)
        assert rows.sealed_bytes == usage.sealed_bytes
        bits[policy] = usage.bits_per_scalar
    assert divergences["int8"] < 1e-4
    assert divergences["int8"] < divergences["int4+hadamard"] < 0.02
    assert divergences["int4+hadamard"] < divergences["int2+hadamard"] < 1.0
    assert bits["int2+hadamard"] < 4 < bits["int4+hadamard"] < 6 < bits["int8"] < 10


@pytest.mark.parametrize("file, limit", [("commvq-2bit", 0.3), ("commvq-1bit", 0.6)])
def test_codebooks_store_keys_before_rope(demo_model, file, limit):
    tokens = demo_tokens(512)
    exact = logits_in_pieces(demo_model, tokens, KvqCache("fp16"), [384, 128])[:, 384:]
    cache = KvqCache("commvq", codebook=DEMO / f"{file}.safetensors")
    assert divergence(exact, logits_in_pieces(demo_model, tokens, cache, [384, 128])[:, 384:]) < limit
    # With the same codebooks and FP16 pages only rounding is left of rotating back and again.
    pages = KvqCache("fp16", codebook=DEMO / f"{file}.safetensors")
    assert divergence(exact, logits_in_pieces(demo_model, tokens, pages, [384, 128])[:, 384:]) < 1e-6


def test_rows_with_padding_work_with_a_router_too(demo_model):
    options = {"policy": MOQAE, "router": ROUTER}
    tokens = demo_tokens(120)
    padded = torch.cat([torch.cat([torch.zeros((1, 30), dtype=torch.long), tokens[:, :90]], dim=1), tokens])
    mask = torch.ones_like(padded)
    mask[0, :30] = 0
    cache = KvqCache(**options)
    together = generated(demo_model, padded, 40, cache, attention_mask=mask)
    assert torch.equal(together[:1], generated(demo_model, tokens[:, :90], 40, KvqCache(**options)))
    assert torch.equal(together[1:], generated(demo_model, tokens, 40, KvqCache(**options)))


def test_a_policy_that_evicts_does_so_when_the_prompt_is_over(demo_model):
    tokens = demo_tokens(600)
    cache = KvqCache("int4+snapkv:128")
    with torch.no_grad():
        demo_model(tokens[:, :400], **using(cache))
        demo_model(tokens[:, 400:599], **using(cache))
        assert cache.sequences[0].slots(0, 0) == 599
        demo_model(tokens[:, 599:], **using(cache))
    for layer in range(6):
        for head in range(2):
            assert cache.sequences[0].slots(layer, head) == 128 + 1
            positions = cache.sequences[0].decode(layer, head, 0, 129).positions.tolist()
            assert positions[-33:] == list(range(567, 600))  # The window of 32 and the new token.
    assert cache.get_seq_length() == 600
    assert generated(demo_model, torch.cat([tokens, tokens[:, :1]], dim=1), 20, cache).shape == (1, 20)


@pytest.mark.parametrize("policy", ["int4+adasnap:64", "fp16+h2o:64"])
def test_tokens_of_each_row_are_evicted_as_if_it_were_alone(demo_model, policy):
    tokens = torch.cat([demo_tokens(160), demo_tokens(160, 300), demo_tokens(160, 600)])
    mask = torch.ones_like(tokens)
    mask[1, :60] = 0
    mask[2, :159] = 0
    cache = KvqCache(policy)
    together = generated(demo_model, tokens, 16, cache, attention_mask=mask)
    assert [row.length(0) for row in cache.sequences] == [175, 115, 16]
    for row, begin in enumerate((0, 60, 159)):
        held = sum(cache.sequences[row].slots(layer, head) for layer in range(6) for head in range(2))
        assert held == 12 * (min(160 - begin, 64) + 15)
        alone = generated(demo_model, tokens[row : row + 1, begin:], 16, KvqCache(policy))
        assert torch.equal(together[row : row + 1], alone)


def test_eviction_by_hand_waits_for_the_call(demo_model):
    tokens = demo_tokens(300)
    cache = KvqCache("fp16+streaming:64", compress="manual")
    logits_in_pieces(demo_model, tokens, cache, [298, 1, 1])
    assert cache.sequences[0].slots(0, 0) == 300
    cache.compress()
    assert cache.sequences[0].slots(0, 0) == 64
    positions = cache.sequences[0].decode(0, 0, 0, 64).positions.tolist()
    assert positions == [0, 1, 2, 3] + list(range(240, 300))


# ---------------------------------------------------------------------------------------------- operations on the cache


def test_a_copy_of_a_cache_shares_its_pages_and_goes_its_own_way(demo_model):
    tokens = demo_tokens(300)
    cache = KvqCache("int4")
    logits_in_pieces(demo_model, tokens[:, :200], cache, [200])
    fork = copy.deepcopy(cache)
    assert cache.usage().shared_pages == cache.usage().sealed_pages + cache.usage().fp16_pages
    a = logits_in_pieces(demo_model, tokens[:, 200:], cache, [100])
    b = logits_in_pieces(demo_model, tokens[:, 200:], fork, [100])
    assert torch.equal(a, b)
    assert cache.get_seq_length() == fork.get_seq_length() == 300
    fork.reset()
    assert cache.get_seq_length() == 300 and fork.get_seq_length() == 0


def test_a_saved_cache_continues_as_if_it_had_not_been_saved(demo_model):
    tokens = torch.cat([demo_tokens(230), demo_tokens(230, 300)])
    mask = torch.ones_like(tokens)
    mask[0, :17] = 0
    options = {"policy": "int4+hadamard", "model_id": 5}
    cache = KvqCache(**options)
    with torch.no_grad():
        demo_model(tokens[:, :200], attention_mask=mask[:, :200], **using(cache))
        data = cache.save()
        loaded = KvqCache.load(data, **options)
        assert loaded.save() == data
        a = demo_model(tokens[:, 200:], attention_mask=mask, **using(cache)).logits
        b = demo_model(tokens[:, 200:], attention_mask=mask, **using(loaded)).logits
    assert torch.equal(a, b)
    newer = data.replace(rb"{\"version\": 1,", rb"{\"version\": 2,")
    assert newer != data
    for broken in (b"", data[:100], data[:-1], data[:-700] + bytes(700), newer, data.replace(b"n_layers", b"n_lawyer")):
        with pytest.raises((ValueError, libkvq.KvqError)):
            KvqCache.load(broken, **options)
    with pytest.raises(libkvq.KvqError, match="model"):
        KvqCache.load(data, policy="int4+hadamard", model_id=6)
    with pytest.raises(libkvq.KvqError):
        KvqCache.load(data, policy="int2", model_id=5)


UNLIKE = [kind for kind in KINDS if kind.startswith(("gemma3n", "gemma4", "mimo", "deepseek", "qwen3.5", "lfm2"))]
"""Kinds whose layers have heads of several shapes, share pages, or have states in place of keys and values; the oldest
transformers has none of the first."""


@pytest.mark.parametrize("kind", UNLIKE)
def test_unlike_layers_generate_beside_padding_and_are_saved(kind):
    model, reference = small(kind), small(kind, "eager")
    tokens, mask = small_tokens(2, 90), torch.ones((2, 90), dtype=torch.long)
    tokens[0, :50], mask[0, :50] = 0, 0
    cache = KvqCache("fp16")
    together = generated(model, tokens, 20, cache, attention_mask=mask)
    for row, begin in ((0, 50), (1, 0)):
        alone = tokens[row : row + 1, begin:]
        assert torch.equal(generated(reference, alone, 20, HalfCache(model.config)), together[row : row + 1])
    loaded = KvqCache.load(cache.save(), policy="fp16")
    more, all_of_it = small_tokens(2, 1), torch.cat([mask, torch.ones((2, 20), dtype=torch.long)], dim=1)
    with torch.no_grad():
        a, b = (model(more, attention_mask=all_of_it, **using(one)).logits for one in (cache, loaded))
    assert torch.equal(a, b)
    assert cache.save() == loaded.save()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "linear attention" in kind])
def test_states_of_linear_attention_follow_rows_forks_and_files(kind):
    model, reference = small(kind), small(kind, "eager")
    tokens = small_tokens(1, 60)
    beams = {"num_beams": 3, "min_new_tokens": 0}
    expected = generated(reference, tokens, 24, HalfCache(model.config), **beams)
    assert torch.equal(generated(model, tokens, 24, KvqCache("fp16"), **beams), expected)

    cache = KvqCache("int4")
    logits_in_pieces(model, tokens[:, :50], cache, [50])
    layers = [cache.sequences[0].cache.describe_layer(layer).recurrent for layer in range(5)]
    assert layers == [True, True, False, True, False] and len(cache) == 5
    fork = cache.fork()
    went_on = logits_in_pieces(model, tokens[:, 50:], cache, [5] * 2)
    assert torch.equal(logits_in_pieces(model, tokens[:, 50:], fork, [5] * 2), went_on)
    data = cache.save()
    before = cache.usage().state_bytes
    assert before > 3 * 4 * 16 * 16 * 4  # Recurrent states of three layers, in float32.
    assert cache.save() == data and cache.usage().state_bytes == before
    loaded = KvqCache.load(data, policy="int4")
    assert loaded.sequences[0].find_states(100) == 60 and loaded.save() == data
    loaded.sequences[0].put_state(3, 60, b"no states")
    with pytest.raises(ValueError, match="not a saved KvqCache"):
        KvqCache.load(snapshot.save(loaded._layout, loaded._rows, loaded._seen, None), policy="int4")
    loaded = KvqCache.load(data, policy="int4")
    with pytest.raises(ValueError, match="cannot be cropped"):
        cache.crop(-1)
    assert not cache.is_croppable

    # A pass that fails cannot be repeated, not even where no keys were stored; the first one can.
    mlp = model.model.layers[1].mlp
    mlp.register_forward_pre_hook(stop)
    for one, words in ((loaded, "reset the cache"), (KvqCache("int4"), None)):
        stop.armed = True
        with pytest.raises(InterruptedError):
            logits_in_pieces(model, tokens[:, :1], one, [1])
        stop.armed = False
        if words is None:
            logits_in_pieces(model, tokens[:, :1], one, [1])
            assert one.get_seq_length() == 1
            continue
        with pytest.raises(RuntimeError, match=words):
            logits_in_pieces(model, tokens[:, :1], one, [1])
        one.reset()
        logits_in_pieces(model, tokens[:, :1], one, [1])


def stop(module, args):
    if stop.armed:
        raise InterruptedError


stop.armed = False


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "share pages" in kind])
def test_layers_that_share_pages_store_keys_and_values_once(kind):
    model = small(kind)
    config = model.config
    cache = KvqCache("fp16")
    logits_in_pieces(model, small_tokens(1, 64), cache, [60] + [1] * 4)
    scalars = 0
    for layer in range(config.num_hidden_layers - config.num_kv_shared_layers):
        info = cache.sequences[0].cache.describe_layer(layer)
        scalars += 64 * info.kv_heads * (info.key_dim + info.value_dim)
    assert len(cache) == config.num_hidden_layers - config.num_kv_shared_layers
    assert cache.usage().scalars == scalars


def test_latents_are_stored_once():
    model = small("deepseek with latents") if "deepseek with latents" in KINDS else None
    if model is None or not hasattr(model.model.layers[0].self_attn, "expand_kv"):
        pytest.skip("this transformers expands latents before it caches them")
    cache = KvqCache("fp16")
    logits_in_pieces(model, small_tokens(1, 64), cache, [60] + [1] * 4)
    layer = cache.sequences[0].cache.describe_layer(0)
    assert (layer.values_are_key_prefix, layer.kv_heads, layer.key_dim, layer.value_dim) == (True, 1, 56, 40)
    assert cache.usage().scalars == 3 * 64 * 56
    layer = model.model.layers[1].self_attn
    layer.kv_b_proj.register_forward_hook(lambda module, args, output: output)
    with pytest.raises(ValueError, match="kv_b_proj of DeepseekV3Attention is a Linear, must be"):
        logits_in_pieces(model, small_tokens(1, 64), KvqCache("fp16"), [60] + [1] * 4)
    with pytest.raises(ValueError, match="indexer"):
        cache.update_indexer(torch.zeros(1, 1, 8), 0)


@pytest.mark.parametrize("kind", UNLIKE)
def test_layers_of_several_shapes_are_compressed(kind):
    model = small(kind)
    tokens = small_tokens(1, 400)
    losses = {}
    exact = logits_in_pieces(model, tokens, KvqCache("fp16"), [300] + [1] * 100)[:, 300:]
    for policy in ("int4+hadamard", "int8"):
        ours = logits_in_pieces(model, tokens, KvqCache(policy), [300] + [1] * 100)[:, 300:]
        losses[policy] = divergence(exact, ours)
    assert 0 < losses["int8"] < 0.1 * losses["int4+hadamard"] < 0.1


@torch.no_grad()
def test_what_a_failed_first_pass_left_is_forgotten():
    model = small("llama")
    cache = KvqCache("fp16")
    tokens, mask = small_tokens(3, 40), torch.ones((3, 40))
    mask[0, :9] = 0
    weight = model.model.layers[0].self_attn.v_proj.weight
    kept = weight.clone()
    weight *= 1e9  # FP16 cannot hold such values.
    with pytest.raises(libkvq.KvqArgumentError, match="65504"):
        model(tokens, attention_mask=mask, **using(cache))
    weight.copy_(kept)
    expected = logits_in_pieces(model, tokens[:2], KvqCache("fp16"), [30, 10])
    assert torch.equal(logits_in_pieces(model, tokens[:2], cache, [30, 10]), expected)


def test_rows_are_chosen_and_repeated_as_transformers_does_it():
    tokens, more = small_tokens(3, 80), small_tokens(4, 20, seed=2)
    mask = torch.ones_like(tokens)
    mask[2, :35] = 0
    rows = torch.tensor([0, 0, 1, 1, 2, 2])[torch.tensor([0, 5, 2, 2])][torch.tensor([3, 3, 0, 1])]
    results = []
    for model, cache in ((small("llama"), KvqCache("fp16")), (small("llama", "eager"), HalfCache())):
        logits_in_pieces(model, tokens, cache, [80], attention_mask=mask)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0, 5, 2, 2]))
        cache.reorder_cache(torch.tensor([3, 3, 0, 1]))
        together = torch.cat([mask[rows], torch.ones_like(more)], dim=1)
        with torch.no_grad():
            steps = [model(more[:, i : i + 1], attention_mask=together[:, : 81 + i], **using(cache)) for i in range(20)]
        results.append(torch.cat([step.logits for step in steps], dim=1))
    assert torch.allclose(*results, atol=2e-4 * float(results[1].abs().max()))


def test_crop_takes_columns_off_the_end_padding_included():
    model, reference = small("llama"), small("llama", "eager")
    tokens = small_tokens(2, 100)
    mask = torch.ones_like(tokens)
    mask[0, :70] = 0
    cache, own = KvqCache({"recent": 3}), HalfCache()
    with torch.no_grad():
        for one, held in ((model, cache), (reference, own)):
            one(tokens[:, :90], attention_mask=mask[:, :90], **using(held))
            held.crop(-15)
            held.crop(0)
        assert [row.length(0) for row in cache.sequences] == [5, 75]
        ours = model(tokens[:, 75:], attention_mask=mask, **using(cache)).logits
        expected = reference(tokens[:, 75:], attention_mask=mask, **using(own)).logits
    assert torch.allclose(ours, expected, atol=1e-4 * float(expected.abs().max()))
    cache.crop(-100)
    assert cache.get_seq_length() == 0 and [row.length(0) for row in cache.sequences] == [0, 0]


def test_a_pass_that_fails_in_the_middle_leaves_what_was_there_before():
    model, reference = small("llama"), small("llama", "eager")
    tokens = small_tokens(1, 60)
    cache, own = KvqCache("fp16"), HalfCache()
    logits_in_pieces(model, tokens[:, :40], cache, [40])
    logits_in_pieces(reference, tokens[:, :40], own, [40])

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = model.model.layers[1].mlp.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        model(tokens[:, 40:50], **using(cache))
    hook.remove()
    ours = logits_in_pieces(model, tokens[:, 40:], cache, [20])
    expected = logits_in_pieces(reference, tokens[:, 40:], own, [20])
    assert torch.allclose(ours, expected, atol=1e-4 * float(expected.abs().max()))


# ------------------------------------------------------------------------------------------------------ without a cache


@torch.no_grad()
def test_without_a_kvq_cache_attention_is_torchs(demo_model, demo_reference):
    tokens = torch.cat([demo_tokens(60), demo_tokens(60, 100)])
    mask = torch.ones_like(tokens)
    mask[1, :20] = 0
    inputs = {"attention_mask": mask, "use_cache": False}
    assert torch.equal(demo_model(tokens, **inputs).logits, demo_reference(tokens, **inputs).logits)
    assert torch.equal(generated(demo_model, tokens, 12), generated(demo_reference, tokens, 12))


def test_importing_libkvq_imports_neither_torch_nor_transformers():
    code = "import sys, libkvq; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
