"""What libkvq.transformers refuses, and that it says why."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402
from transformers_models import (  # noqa: E402
    CODEBOOK,
    KINDS,
    MOQAE,
    generated,
    logits_in_pieces,
    small,
    small_tokens,
    using,
)

import libkvq  # noqa: E402
from libkvq.transformers import KvqCache  # noqa: E402


@pytest.fixture
def model():
    with torch.no_grad():
        yield small("llama")


@pytest.fixture
def tokens():
    return small_tokens(2, 100)


def filled(model, tokens, policy="fp16", **options):
    cache = KvqCache(policy, **options)
    model(tokens, **using(cache))
    return cache


def test_a_policy_that_cannot_be_read_is_refused_where_it_is_written():
    with pytest.raises(libkvq.KvqFormatError, match="int5"):
        KvqCache("int5")
    with pytest.raises(libkvq.KvqFormatError, match="colour"):
        KvqCache({"keys": "int4", "colour": "blue"})
    with pytest.raises(FileNotFoundError):
        KvqCache("missing.yaml")
    with pytest.raises(FileNotFoundError):
        KvqCache("commvq", codebook="missing.safetensors")
    with pytest.raises(ValueError, match="'later'"):
        KvqCache("int4", compress="later")


def test_codebooks_of_another_shape_and_missing_ones_are_refused(model, tokens):
    cache = KvqCache("commvq")
    with pytest.raises(libkvq.KvqArgumentError, match="codebook"):
        model(tokens, **using(cache))
    with pytest.raises(libkvq.KvqArgumentError, match="router"):
        model(tokens, **using(KvqCache(MOQAE)))
    with pytest.raises(libkvq.KvqMismatchError):
        model(tokens, **using(KvqCache("commvq", codebook=CODEBOOK)))
    assert cache.get_seq_length() == 0 and len(cache) == 0


def test_rope_that_kvq_cannot_apply_is_refused_for_codebooks():
    kinds = {"gemma3 with two rotary embeddings": "Gemma3", "gpt-oss with sinks": "yarn"}
    for kind, message in kinds.items():
        with pytest.raises(ValueError, match=message), torch.no_grad():
            small(kind)(small_tokens(1, 20), **using(KvqCache("fp16", codebook=CODEBOOK)))


def test_positions_with_padding_counted_are_refused_for_codebooks():
    from transformers_models import demo, demo_tokens

    tokens, mask = demo_tokens(50), torch.ones((1, 50), dtype=torch.long)
    mask[0, :10] = 0
    with pytest.raises(ValueError, match="position_ids"), torch.no_grad():
        demo()(tokens, attention_mask=mask, **using(KvqCache("commvq", codebook=CODEBOOK)))


def test_four_dimensional_and_other_masks_are_refused(model, tokens):
    with pytest.raises(ValueError, match="four-dimensional"):
        model(tokens, attention_mask=torch.ones((2, 1, 100, 100)), **using(KvqCache("fp16")))
    cache = filled(model, tokens)
    with pytest.raises(ValueError, match="has 1 columns; it needs 101"):
        model(tokens[:, :1], attention_mask=torch.ones((2, 1)), **using(cache))
    mask = torch.ones((2, 101))
    mask[0, 50] = 0
    with pytest.raises(ValueError, match="hides columns"):
        model(tokens[:, :1], attention_mask=mask, **using(cache))
    assert cache.get_seq_length() == 100
    model(tokens[:, :1], attention_mask=torch.ones((2, 101)), **using(cache))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_with_another_attention_is_refused(model, tokens, attention):
    other = small("llama", attention)
    with pytest.raises(ValueError, match='attn_implementation="kvq"'):
        other(tokens, **using(KvqCache("fp16")))
    cache = filled(model, tokens)
    with pytest.raises(ValueError, match='attn_implementation="kvq"'):
        other(tokens[:, :1], **using(cache))
    cache.crop(-100)
    with pytest.raises(ValueError, match='attn_implementation="kvq"'):
        other(tokens, **using(cache))


def test_attention_that_is_not_causal_is_refused(tokens):
    model = small("llama", is_causal=False)
    with pytest.raises(ValueError, match="causally"), torch.no_grad():
        model(tokens, **using(KvqCache("fp16")))


def test_attention_in_chunks_is_refused():
    from types import SimpleNamespace

    from transformers.masking_utils import create_chunked_causal_mask

    config = SimpleNamespace(_attn_implementation="kvq", attention_chunk_size=32)
    with pytest.raises(ValueError, match="in chunks"):
        create_chunked_causal_mask(config, torch.zeros((1, 50, 8)), None, KvqCache("fp16"))


def test_gradients_and_weights_are_refused(model, tokens):
    with torch.enable_grad():
        with pytest.raises(RuntimeError, match="no gradients"):
            model(tokens, **using(KvqCache("fp16")))
        model(tokens, use_cache=False).logits.sum().backward()  # Without a KvqCache it is torch's attention.
        for name in ("q_proj", "k_proj", "v_proj"):
            model.requires_grad_(False)
            getattr(model.model.layers[1].self_attn, name).requires_grad_(True)  # The first layer alone has none.
            with pytest.raises(RuntimeError, match="no gradients"):
                model(tokens, **using(KvqCache("fp16")))
        sinks = small("gpt-oss with sinks").requires_grad_(False)
        sinks.model.layers[0].self_attn.sinks.requires_grad_(True)
        with pytest.raises(RuntimeError, match="no gradients"):
            sinks(tokens, **using(KvqCache("fp16")))
    with pytest.raises(ValueError, match="attention"):
        model(tokens, **using(KvqCache("fp16")), output_attentions=True)
    with pytest.raises(ValueError, match="attention"):
        generated(model, tokens, 4, KvqCache("fp16"), output_attentions=True, return_dict_in_generate=True)


@pytest.mark.parametrize("kind", ["gemma2 with a soft cap, another scale and windows", "gpt-oss with sinks"])
def test_without_a_kvq_cache_soft_caps_and_sinks_are_refused(kind, tokens):
    assert kind in KINDS
    with pytest.raises(ValueError, match="KvqCache"), torch.no_grad():
        small(kind)(tokens, use_cache=False)


def test_another_batch_or_another_model_is_refused(model, tokens):
    cache = filled(model, tokens)
    with pytest.raises(ValueError, match="2 rows, the input has 1"):
        model(tokens[:1], **using(cache))
    with pytest.raises(ValueError, match="'kv_heads': 2.*'kv_heads': 1"):
        small("llama with one KV head")(tokens, **using(cache))
    cache.reset()
    model(tokens[:1], **using(cache))
    assert cache.batch_size == 1


def test_a_crop_inside_a_sealed_page_is_refused_with_advice(model, tokens):
    cache = filled(model, tokens, "int4")
    with pytest.raises(RuntimeError, match="recent: 2"):
        cache.crop(-20)
    assert cache.get_seq_length() == 100 and [row.length(2) for row in cache.sequences] == [100, 100]
    cache.crop(-4)
    assert cache.get_seq_length() == 96
    with pytest.raises(ValueError, match="cannot remove 97"):
        cache.crop(-97)
    with pytest.raises(RuntimeError, match="recent: 2"):
        generated(model, tokens[:1], 60, KvqCache("int4"), prompt_lookup_num_tokens=10, max_matching_ngram_size=1)


def test_a_limit_of_bytes_is_kept_and_leaves_the_cache_as_it_was(model, tokens):
    cache = filled(model, tokens[:1], max_bytes=1 << 20)
    before = cache.usage().scalars
    with pytest.raises(MemoryError):
        for seed in range(20):
            model(small_tokens(1, 100, seed), **using(cache))
    assert cache.sequences[0].cache.context.describe().peak_bytes <= 1 << 20
    length = cache.get_seq_length()
    assert length % 100 == 0 and length > 100
    cache.crop(100 - length)
    assert cache.usage().scalars == before
    logits = logits_in_pieces(model, tokens[:1, :10], cache, [10])
    assert torch.equal(logits, logits_in_pieces(model, tokens[:1, :10], filled(model, tokens[:1]), [10]))


def test_an_empty_cache_has_no_usage_and_compressing_needs_a_policy_that_evicts(model, tokens):
    with pytest.raises(RuntimeError, match="empty"):
        KvqCache("int4").usage()
    with pytest.raises(RuntimeError, match="empty"):
        KvqCache("int4").save()
    with pytest.raises(libkvq.KvqStateError):
        filled(model, tokens).compress()


def test_another_cache_is_used_as_torch_would_use_it(model, tokens):
    reference = small("llama", "sdpa")
    ours = logits_in_pieces(model, tokens, DynamicCache(), [90, 10])
    assert torch.equal(ours, logits_in_pieces(reference, tokens, DynamicCache(), [90, 10]))


def test_devices_that_kvq_does_not_know_are_refused():
    model = small("llama").to("meta")
    with pytest.raises(ValueError, match="not on meta"), torch.no_grad():
        model(torch.zeros((1, 4), dtype=torch.long, device="meta"), **using(KvqCache("fp16")))


def test_threads_and_model_id_reach_the_library(model, tokens):
    cache = filled(model, tokens, threads=2, model_id=7)
    assert cache.sequences[0].cache.describe().model_id == 7
    assert cache.sequences[0].cache.context.describe().n_threads == 2
