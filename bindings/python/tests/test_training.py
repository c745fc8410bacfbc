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


def test_codebooks_are_trained_for_scales(context, tokens):
    """Which the cache must have, too."""
    numbers = tokens.copy()
    numbers[:, :, 3] *= 50  # an outlier channel
    finder = experimental.CentresTrainer(
        context, 2, 1, 16, "half", 0, 0, model_id=9, key_scales=True, value_scales=True
    )
    for layer in range(2):
        finder.add(layer, numbers, numbers)
        finder.run(layer)
    scales = finder.result()
    trainer = trained(context, numbers, scales=scales)
    for layer in range(2):
        trainer.run(layer)
    codebook = trainer.result()
    assert codebook.describe().scales == scales.describe().checksum != 0
    libkvq.Cache(context, 2, 2, 1, 16, model_id=9, codebook=codebook, centres=scales, policy="commvq").close()
    with pytest.raises(libkvq.KvqMismatchError):
        libkvq.Cache(context, 2, 2, 1, 16, model_id=9, codebook=codebook, policy="commvq")
    with pytest.raises(TypeError, match="scales"):
        trained(context, tokens, scales=codebook)


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
    assert centres.read_scales(1) == (None, None, None)
    data = centres.save()
    assert libkvq.Centres.load(context, data).save() == data
    libkvq.Cache(context, 2, 2, 1, 16, centres=centres, policy="int4").close()  # which does not need them
    with pytest.raises(libkvq.KvqFormatError):
        libkvq.Centres.load(context, data[:-1])
    with pytest.raises(libkvq.KvqArgumentError, match="key_centres is 257"):
        experimental.CentresTrainer(context, n_layers=2, kv_heads=1, head_dim=16, key_centres=257)


def test_scales_of_tokens_and_queries(context, random):
    numbers = random.standard_normal((2, 600, 1, 16)).astype("f4")
    numbers[:, :, :, 3] *= 50  # an outlier channel
    k, v = numbers
    q = random.standard_normal((600, 2, 16)).astype("f4")
    trainer = experimental.CentresTrainer(context, 1, 1, 16, "none", 0, 0, key_scales=True, value_scales=True)
    trainer.add(0, k, v)
    trainer.add_queries(0, q)
    with pytest.raises(libkvq.KvqArgumentError, match=r"q has the shape \[600, 16\], must be \[n, n, 16\]"):
        trainer.add_queries(0, q[:, 0])
    with pytest.raises(libkvq.KvqStateError):
        trainer.result().read_scales(0)
    trainer.run(0)
    centres = trainer.result()
    assert (centres.describe().key_scales, centres.describe().value_scales) == (1, 1)
    scales = [numpy.asarray(one) for one in centres.read_scales(0)]
    assert [one.shape for one in scales] == [(1, 16)] * 3
    energy = (q.astype("f8") ** 2).mean((0, 1)) / k[:, 0].astype("f8").var(0)
    wanted = energy**0.25 / (energy**0.25).max()
    numpy.testing.assert_allclose(scales[0][0], wanted, rtol=0.02)
    assert scales[1].argmin() == 3
    numpy.testing.assert_allclose(scales[2][0], v[:, 0].mean(0), atol=0.05)
    with pytest.raises(libkvq.KvqArgumentError, match="layer is 1"):
        centres.read_scales(1)
    libkvq.Cache(context, 1, 2, 1, 16, rope="none", centres=centres, policy="int2").close()


def test_scales_of_weights(context, random):
    def weights(*shape):
        return random.standard_normal(shape).astype("f4")

    projections = {"q_proj": weights(32, 24), "k_proj": weights(16, 24), "v_proj": weights(16, 24)}
    projections["v_proj"][5] *= 30
    others = {"o_proj": weights(24, 32), "k_bias": weights(16), "input_norm": numpy.ones(24, "f4")}

    def scales(**options):
        given = {**projections, **others, **options}
        trainer = experimental.CentresTrainer(
            context, 1, 1, 16, "half", 0, 0, key_scales=True, value_scales=True, powers_of_two=True, rope_base=500.0
        )
        trainer.add_weights(0, 2, **given)
        trainer.run(0)
        return [numpy.asarray(one) for one in trainer.result().read_scales(0)]

    keys, values, _ = scales()
    assert (keys[0, :8] == keys[0, 8:]).all() and values[0].argmin() == 5
    assert (numpy.log2(numpy.concatenate([keys, values])) % 1 == 0).all()
    halves = {name: one.astype("f2") for name, one in {**projections, **others}.items()}
    assert (scales(**halves)[0] == keys).mean() > 0.9
    for wrong, message in (
        ({"q_proj": weights(16, 24)}, r"q_proj has the shape \[16, 24\], must be \[32, n\]"),
        ({"k_proj": weights(16, 25)}, r"k_proj has the shape \[16, 25\], must be \[16, 24\]"),
        ({"o_proj": weights(24, 16)}, r"o_proj has the shape \[24, 16\], must be \[24, 32\]"),
        ({"k_bias": weights(16).astype("f2")}, "one element type"),
        ({"q_norm": weights(8)}, r"q_norm has the shape \[8\]"),
    ):
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            scales(**wrong)
    with pytest.raises(libkvq.KvqArgumentError, match="projections must be given"):
        experimental.CentresTrainer(context, 1, 1, 16, key_scales=True).add_weights(0, 2)


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
