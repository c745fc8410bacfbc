"""Codebooks, centres and routers, trained and used."""

import numpy
import pytest

import libkvq
from libkvq import experimental


@pytest.fixture
def tokens(random):
    """Of two directions and noise, which codes can learn."""
    directions = random.standard_normal((2, 16))
    return (random.standard_normal((600, 1, 2)) @ directions + 0.1 * random.standard_normal((600, 1, 16))).astype("f4")


def trained(context, tokens, **options):
    trainer = experimental.CodebookTrainer(
        context, n_layers=2, kv_heads=1, head_dim=16, key_stages=3, key_codes=8, model_id=9, note="a test", **options
    )
    for layer in range(2):
        trainer.add(layer, tokens, tokens + layer)
    return trainer


def test_a_codebook_is_trained_saved_and_used(context, tokens):
    trainer = trained(context, tokens)
    done = []
    trainer.run(0, progress=done.append)
    assert done and done == sorted(done)
    unfinished = trainer.result()
    assert unfinished.describe().layers_present == 1
    assert unfinished.describe_layer(1).present is False
    with pytest.raises(libkvq.KvqCancelledError):
        trainer.run(1, progress=lambda done: False)
    trainer.run(1)
    with pytest.raises(libkvq.KvqStateError):
        trainer.run(1)
    codebook = trainer.result()
    trainer.close()
    info = codebook.describe()
    assert (info.n_layers, info.layers_present, info.head_dim, info.rope, info.note) == (2, 2, 16, "half", "a test")
    assert info.value_scope == "layer" and info.key_norms == "head" and info.tokens == 600
    layer = codebook.describe_layer(0)
    assert layer.present is True and len(layer.key_stage_errors) == 64
    assert layer.key_stage_errors[0] > layer.key_stage_errors[2] == layer.key_error > layer.key_stage_errors[3] == 0
    data = codebook.save()
    assert libkvq.Codebook.load(context, data).save() == data
    cache = libkvq.Cache(context, 2, 2, 1, 16, model_id=9, codebook=codebook, policy="commvq")
    codebook.close()
    sequence = cache.sequence()
    sequence.append(0, tokens[:100], tokens[:100])
    with pytest.raises(libkvq.KvqMismatchError):
        libkvq.Cache(context, 2, 2, 1, 16, model_id=8, codebook=libkvq.Codebook.load(context, data), policy="commvq")


def test_training_resumes_from_an_unfinished_result(context, tokens):
    first = trained(context, tokens)
    first.run(0)
    second = trained(context, tokens)
    second.resume(first.result())
    second.run(1)
    whole = trained(context, tokens)
    whole.run(0)
    whole.run(1)
    assert second.result().save() == whole.result().save()
    with pytest.raises(libkvq.KvqMismatchError):
        trained(context, tokens, seed=2).resume(first.result())


def test_wrong_texts_are_refused_by_name(context, tokens):
    trainer = trained(context, tokens)
    for k, v, message in (
        (tokens[:, 0], tokens, r"k has the shape \[600, 16\], must be \[n, 1, 16\]"),
        (tokens, tokens[1:], r"v has the shape \[599, 1, 16\], must be \[600, 1, 16\]"),
        (tokens, tokens.astype("f2"), "one element type"),
        (None, None, "k and v must be arrays"),
        (tokens, None, "v is NULL"),
    ):
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            trainer.add(0, k, v)
    with pytest.raises(ValueError, match="value_method is 'guess'"):
        trained(context, tokens, value_method="guess")


def test_centres_are_trained_saved_and_used(context, tokens):
    trainer = experimental.CentresTrainer(
        context, n_layers=2, kv_heads=1, head_dim=16, key_centres=4, value_centres=1, model_id=9, note="a test"
    )
    for layer in range(2):
        trainer.add(layer, tokens, tokens + layer)
    with pytest.raises(libkvq.KvqArgumentError, match=r"k has the shape \[600, 16\], must be \[n, 1, 16\]"):
        trainer.add(0, tokens[:, 0], tokens)
    with pytest.raises(libkvq.KvqCancelledError):
        trainer.run(0, progress=lambda done: False)
    done = []
    for layer in range(2):
        trainer.run(layer, progress=done.append)
    assert done[-1] == 1
    with pytest.raises(libkvq.KvqStateError):
        trainer.run(1)
    centres = trainer.result()
    trainer.close()
    info = centres.describe()
    assert (info.n_layers, info.layers_present, info.head_dim, info.rope, info.note) == (2, 2, 16, "half", "a test")
    assert (info.key_centres, info.value_centres, info.tokens, info.bytes) == (4, 1, 600, 2 * 5 * 16 * 4)
    layer = centres.describe_layer(1)
    assert layer.present is True and 0 < layer.key_residual < 1
    data = centres.save()
    assert libkvq.Centres.load(context, data).save() == data
    libkvq.Cache(context, 2, 2, 1, 16, centres=centres, policy="int4").close()  # which does not need them
    with pytest.raises(libkvq.KvqFormatError):
        libkvq.Centres.load(context, data[:-1])
    with pytest.raises(libkvq.KvqArgumentError, match="key_centres is 257"):
        experimental.CentresTrainer(context, n_layers=2, kv_heads=1, head_dim=16, key_centres=257)


def test_a_router_is_trained_saved_and_used(context, random):
    policy = "{version: 1, router: {experts: [fp16, int4, int2]}}"
    shape = {"n_layers": 1, "q_heads": 2, "kv_heads": 1, "head_dim": 16}
    trainer = experimental.RouterTrainer(context, policy=policy, mean_bits=6.0, epochs=2, note="a test", **shape)
    with pytest.raises(libkvq.KvqStateError):
        trainer.result()
    q, k, v = (random.standard_normal((400, heads, 16), dtype="f4") for heads in (2, 1, 1))
    trainer.add(0, q, k, v)
    with pytest.raises(libkvq.KvqArgumentError, match="q has the shape"):
        trainer.add(0, k, k, v)
    with pytest.raises(libkvq.KvqCancelledError):
        trainer.run(progress=lambda done: False)
    trainer.run(progress=lambda done: None)
    router = trainer.result()
    info = router.describe()
    assert (info.n_experts, info.experts, info.method, info.groups) == (3, "fp16, int4, int2", "label", 1)
    group = router.describe_group(0)
    assert (group.first_layer, group.last_layer) == (0, 0)
    assert sum(group.shares) == pytest.approx(1) and len(group.shares) == 8
    data = router.save()
    assert libkvq.Router.load(context, data).save() == data
    cache = libkvq.Cache(context, router=router, policy=policy, **shape)
    sequence = cache.sequence()
    sequence.append(0, k, v)
    assert cache.describe_layer(0).n_formats == 3
    assert numpy.isfinite(cache.attend(0, sequence, q[:1])).all()
    with pytest.raises(libkvq.KvqArgumentError, match="router"):
        libkvq.Cache(context, policy=policy, **shape)
