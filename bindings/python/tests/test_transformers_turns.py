"""Further turns and prompts that begin alike: which tokens transformers feeds to a cache that holds some."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402
from transformers_models import demo, demo_tokens, generated, logits_in_pieces, small, small_tokens, using  # noqa: E402

from libkvq.transformers import KvqCache  # noqa: E402


@pytest.fixture(scope="module")
def demo_model():
    return demo()


@pytest.fixture(scope="module")
def demo_reference():
    return demo("sdpa")


@pytest.fixture
def model():
    with torch.no_grad():
        yield small("llama")


@pytest.fixture
def tokens():
    return small_tokens(2, 100)


@pytest.fixture
def filled(model, tokens):
    """A cache with these tokens."""
    cache = KvqCache("fp16")
    model(tokens, **using(cache))
    return cache


def test_a_second_turn_continues_the_cache_of_the_first(demo_model, demo_reference):
    first, second = demo_tokens(90), demo_tokens(40, 700)
    cache, own = KvqCache("fp16"), DynamicCache()
    for model, held in ((demo_model, cache), (demo_reference, own)):
        reply = generated(model, first, 20, held)
        conversation = torch.cat([first, reply, second], dim=1)
        assert conversation.shape[1] == 150
        held.reply = generated(model, conversation, 20, held)
    assert torch.equal(cache.reply, own.reply)
    assert cache.get_seq_length() == 169


def test_a_prompt_that_is_in_the_cache_is_not_fed_again(demo_model, demo_reference):
    """Text that several prompts begin with, computed once: `generate` gets the whole prompts."""
    shared = demo_tokens(90)
    prompts = [torch.cat([shared, demo_tokens(n, 700)], dim=1) for n in (1, 40)]
    cache, own = KvqCache("fp16"), DynamicCache()
    for model, held in ((demo_model, cache), (demo_reference, own)):
        logits_in_pieces(model, shared, held, [90])
    for prompt in prompts:
        ours, expected = copy.deepcopy(cache), copy.deepcopy(own)
        assert torch.equal(generated(demo_model, prompt, 20, ours), generated(demo_reference, prompt, 20, expected))
        assert ours.get_seq_length() == expected.get_seq_length() == prompt.shape[1] + 19
    assert cache.get_seq_length() == 90


def test_a_second_turn_of_rows_with_padding_continues_the_first(demo_model, demo_reference):
    first, second = demo_tokens(60).repeat(2, 1), demo_tokens(20, 700).repeat(2, 1)
    mask = torch.ones_like(first)
    mask[0, :25] = 0
    cache, own = KvqCache("fp16"), DynamicCache()
    for model, held in ((demo_model, cache), (demo_reference, own)):
        reply = generated(model, first, 10, held, attention_mask=mask)
        conversation = torch.cat([first, reply, second], dim=1)
        whole = torch.cat([mask, torch.ones((2, 30), dtype=mask.dtype)], dim=1)
        held.reply = generated(model, conversation, 10, held, attention_mask=whole)
    assert torch.equal(cache.reply, own.reply)
    assert [row.length(0) for row in cache.sequences] == [99 - 25, 99]


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_the_older_name_of_the_argument_works(demo_model):
    tokens = demo_tokens(40)
    options = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5, "pad_token_id": 0}
    cache = KvqCache("fp16")
    output = demo_model.generate(tokens, attention_mask=torch.ones_like(tokens), past_key_values=cache, **options)
    assert torch.equal(output[:, 40:], generated(demo_model, tokens, 5, KvqCache("fp16")))
    assert cache.get_seq_length() == 44


def test_transformers_takes_it_for_a_cache_of_full_attention():
    """Also while it is empty: of no layers, all would be sliding, linear and so on."""
    model, cache = small("llama"), KvqCache("fp16")
    for layers in (1, 3):
        own = DynamicCache(config=model.config)
        for name in ("is_sliding", "is_linear", "is_dummy"):
            if hasattr(own, name):
                assert getattr(cache, name) == getattr(own, name)[:layers] == [False] * layers
        for name in ("is_compileable", "is_croppable"):
            if hasattr(own, name):
                assert getattr(cache, name) == getattr(own, name), name
        logits_in_pieces(model, small_tokens(1, 4), cache, [4])


def test_tokens_that_are_in_the_cache_already_are_refused(model, tokens, filled):
    """Whatever makes transformers feed them again, also where it passes no mask."""
    before = [row.save() for row in filled.sequences]
    more = small_tokens(2, 5, seed=2)
    refused = [
        (torch.cat([tokens, more], dim=1), torch.arange(105)[None], "begin at 0, the new tokens of row 0 at 100"),
        (tokens, torch.arange(100)[None], "begin at 0, the new tokens of row 0 at 100"),
        (more, torch.arange(99, 104)[None], "begin at 99, the new tokens of row 0 at 100"),
        (more, torch.tensor([[100], [102]]) + torch.arange(5), "begin at 102, the new tokens of row 1 at 100"),
        (more[:, :1], torch.tensor([[7]]), "begin at 7, the new tokens of row 0 at 100"),
        (more, torch.tensor([[100, 101, 102, 104, 103]]), "position_ids of row 0 .* are not consecutive"),
    ]
    for fed, positions, message in refused:
        with pytest.raises(ValueError, match=message):
            model(fed, position_ids=positions, **using(filled))
    with pytest.raises(ValueError, match="begin at 3, the new tokens of row 0 at 0"):
        model(more, position_ids=torch.arange(3, 8)[None], **using(KvqCache("fp16")))
    assert filled.get_seq_length() == 100 and [row.save() for row in filled.sequences] == before
    model(more, position_ids=torch.arange(100, 105)[None], **using(filled))
    assert filled.get_seq_length() == 105


def test_a_prompt_that_is_in_the_cache_as_a_whole_is_refused(model, tokens, filled):
    """transformers would feed all of it again, since it cuts off the last 0 tokens."""
    with pytest.raises(ValueError, match="attention_mask has 100 columns; it needs 200|begin at 0, the new tokens"):
        generated(model, tokens, 4, filled)
    assert filled.get_seq_length() == 100


def test_several_tokens_that_nothing_tells_the_places_of_are_refused(model, tokens, filled):
    """A model that hands no position_ids to its attention, called without a mask."""
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, inputs, named: (inputs, {**named, "position_ids": None}), with_kwargs=True
        )
    model(tokens[:, :1], **using(filled))
    with pytest.raises(ValueError, match="neither attention_mask nor position_ids"):
        model(tokens[:, :3], **using(filled))
    model(tokens[:, :3], attention_mask=torch.ones((2, 104)), **using(filled))
    assert filled.get_seq_length() == 104
