"""Steps end with their ``with`` statement: committed, or aborted by an exception."""

import numpy
import pytest

import libkvq


@pytest.fixture
def other(cache, random):
    """A second sequence, of 30 tokens."""
    sequence = cache.sequence()
    for layer in range(2):
        k, v = random.standard_normal((2, 30, 2, 32), dtype="f4")
        sequence.append(layer, k, v)
    return sequence


def extend(cache, sequences, n):
    """Extend all layers by `n` tokens of each sequence, the same every time."""
    random = numpy.random.default_rng(5)
    rows = n * len(sequences)
    for layer in range(2):
        k, v = random.standard_normal((2, rows, 2, 32), dtype="f4")
        q = random.standard_normal((rows, 4, 32), dtype="f4")
        cache.extend(layer, sequences, k, v, q, token_counts=[n] * len(sequences))


def lengths(sequence):
    return [sequence.length(layer) for layer in range(2)]


def test_accepted_tokens_stay_as_if_no_others_had_been_appended(cache, filled, other):
    expected = filled.fork()
    before = other.save()
    with cache.step([filled, other], [40, 40]) as step:
        assert step.active and repr(step) == "<libkvq.Step>"
        extend(cache, [filled, other], 40)
        assert lengths(filled) == [140, 140]
        step.commit([3, 0])
        assert not step.active and repr(step) == "<libkvq.Step (not active)>"
    random = numpy.random.default_rng(5)
    for layer in range(2):
        k, v = random.standard_normal((2, 80, 2, 32), dtype="f4")
        random.standard_normal((80, 4, 32), dtype="f4")
        expected.append(layer, k[:3], v[:3])
    assert filled.save() == expected.save()
    assert other.save() == before


@pytest.mark.parametrize("kind", ["u4", "i4"])
def test_a_path_of_a_tree_stays_whose_tokens_see_what_the_mask_says(cache, filled, random, kind):
    expected = filled.fork()
    mask = numpy.array([[1], [2], [6]], kind)  # two siblings, and a child of the second one
    with cache.step(filled, [3]) as step:
        for layer in range(2):
            k, v = random.standard_normal((2, 3, 2, 32), dtype="f4")
            q = random.standard_normal((3, 4, 32), dtype="f4")
            given = dict(token_counts=[3], positions=[100, 100, 101])
            with pytest.raises(libkvq.KvqArgumentError, match=r"mask has the shape \[3, 1\], must be \[3, 2\]"):
                cache.extend(layer, filled, k, v, q, mask=mask, mask_slots=40, **given)
            with pytest.raises(libkvq.KvqArgumentError, match="mask has elements of f32"):
                cache.extend(layer, filled, k, v, q, mask=mask.astype("f4"), mask_slots=3, **given)
            tree = cache.extend(layer, filled, k, v, q, mask=mask, mask_slots=3, **given)
            alone = cache.extend(layer, expected, k[1:], v[1:], q[1:], token_counts=[2])
            assert numpy.allclose(tree[1:], alone, atol=1e-4)
        with pytest.raises(libkvq.KvqArgumentError, match="both"):
            step.commit([2], kept=[[1, 2]])
        step.commit(kept=[[1, 2]])
    assert filled.save() == expected.save()


def test_the_end_commits_all_tokens(cache, filled):
    with cache.step(filled):  # one token
        extend(cache, [filled], 1)
    assert lengths(filled) == [101, 101]
    with cache.step(filled, [4]):
        extend(cache, [filled], 4)
    assert lengths(filled) == [105, 105]


def test_an_exception_takes_tokens_back(cache, filled, other):
    before = filled.save()
    with pytest.raises(ZeroDivisionError):
        with cache.step([filled, other], [4, 4]) as step:
            extend(cache, [filled, other], 4)
            raise ZeroDivisionError
    assert not step.active and filled.save() == before and lengths(other) == [30, 30]
    with cache.step([filled, other], [4, 4]) as step:
        extend(cache, [filled, other], 4)
        step.abort()
        step.abort()  # has ended, nothing happens
        with pytest.raises(libkvq.KvqStateError, match="not active"):
            step.commit()
    assert filled.save() == before and lengths(other) == [30, 30]


def test_layers_that_disagree_are_refused_at_the_end_and_taken_back(cache, filled):
    with pytest.raises(libkvq.KvqStateError, match="cannot keep all tokens"):
        with cache.step(filled, [2]):
            filled.append(1, *numpy.ones((2, 1, 2, 32), "f4"))
    assert lengths(filled) == [100, 100]


def test_what_a_step_refuses_leaves_it_active(cache, filled):
    with cache.step([filled], [2]) as step:
        extend(cache, [filled], 2)
        calls = (lambda: filled.truncate(100), filled.fork, filled.save, lambda: filled.reserve(64), filled.recode)
        for call in calls:
            with pytest.raises(libkvq.KvqStateError, match="in a step"):
                call()
        with pytest.raises(libkvq.KvqStateError, match="in a step already"):
            with cache.step(filled):
                pass
        with pytest.raises(libkvq.KvqStateError, match="begun already"):
            with step:
                pass
        with pytest.raises(libkvq.KvqArgumentError, match="has received 2 tokens"):
            step.commit([3])
        with pytest.raises(libkvq.KvqArgumentError, match="token_counts has 2 numbers, must have 1"):
            step.commit([1, 1])
        with pytest.raises(libkvq.KvqArgumentError, match="the step began with 2 tokens"):
            extend(cache, [filled], 1)
        step.commit([1])
    assert lengths(filled) == [101, 101]
    with pytest.raises(libkvq.KvqArgumentError, match="must be at least 1"):
        with cache.step(filled, [0]):
            pass
    with pytest.raises(libkvq.KvqArgumentError, match="sequences is empty"):
        cache.step([])


def test_a_sequence_may_be_closed_inside(cache, filled, other):
    with pytest.raises(ValueError, match="closed"):
        with cache.step([filled, other], [2, 2]):
            extend(cache, [filled, other], 2)
            other.close()
    assert lengths(filled) == [100, 100]
    with cache.step(filled) as step:
        filled.close()
        step.abort()
    assert not step.active


def test_without_memory_for_all_tokens_no_step_begins():
    with libkvq.Context() as context:
        cache = libkvq.Cache(context, 2, 4, 2, 32, max_bytes=200_000)
        sequence = cache.sequence()
        with pytest.raises(libkvq.KvqLimitError):
            with cache.step(sequence, [100_000]):
                pass
        with cache.step(sequence, [2]):
            extend(cache, [sequence], 2)
        assert lengths(sequence) == [2, 2]
