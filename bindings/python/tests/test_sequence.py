"""Sequences: forks, truncation, snapshots, eviction, bytes."""

import numpy
import pytest

import libkvq


def test_forks_are_cut_and_leave_their_parent_as_it_is(cache, filled, random):
    before = cache.usage()
    snapshot = filled.save()
    fork = filled.fork()
    assert cache.usage().shared_pages == before.sealed_pages + before.fp16_pages
    k = random.standard_normal((10, 2, 32), dtype="f4")
    fork.append(0, k, k)
    fork.append(1, k, k)
    fork.truncate(99)
    assert (filled.length(0), fork.length(0), fork.slots(0, 1)) == (100, 99, 99)
    with pytest.raises(libkvq.KvqStateError, match="sealed") as caught:
        fork.truncate(20)
    assert caught.value.status_name == "KVQ_E_STATE"
    with pytest.raises(libkvq.KvqArgumentError, match="length is 100"):
        fork.truncate(100)
    assert filled.save() == snapshot


def test_snapshots_round_trip(context, cache, filled):
    data = filled.save()
    for kind in (bytes, bytearray, memoryview):
        again = cache.load_sequence(kind(data))
        assert again.save() == data
        assert again.length(1) == 100
    assert context.file_type(data) == "snapshot" and context.file_type(b"") == "unknown"
    with pytest.raises(libkvq.KvqFormatError):
        cache.load_sequence(data[:-1])
    with pytest.raises(libkvq.KvqFormatError):
        cache.load_sequence(b"")
    assert [one.save() for one in cache.load(data)] == [data]


def test_reserved_room_is_used_up_by_appends(cache, random):
    sequence = cache.sequence()
    sequence.reserve(64)
    assert sequence.room(0) == 64
    k = random.standard_normal((10, 2, 32), dtype="f4")
    sequence.append(0, k, k)
    assert sequence.room(0) == 54 and sequence.room(1) == 64
    sequence.reserve(0)
    assert sequence.room(1) == 0


def test_policies_are_written_with_their_layers_and_sizes_predicted(context, random):
    policy = libkvq.Policy(context, "int4").with_layer(1, 1, keys="gs2")
    text = policy.save()
    assert text == "version: 1\nkeys: int4\nvalues: int4\nlayers:\n  - {range: [1, 1], keys: gs2}\n"
    assert libkvq.Policy(context, text).save() == text
    cache = libkvq.Cache(context, n_layers=2, q_heads=2, kv_heads=2, head_dim=32, policy=policy)
    predicted = cache.predict_usage(1, 100)
    sequence = cache.sequence()
    sequence.reserve(100)
    k = random.standard_normal((100, 2, 32), dtype="f4")
    for layer in range(2):
        sequence.append(layer, k, k)
    assert cache.usage() == predicted


def test_compress_keeps_what_the_policy_says(context, random):
    policy = libkvq.Policy(context, "int8").with_eviction("snapkv", 40)
    assert policy.describe().eviction_budget == 40
    assert policy.describe().eviction_window == 32
    policy = policy.with_eviction("streaming", 40)  # which scores by position alone
    sequence = libkvq.Cache(context, n_layers=1, q_heads=2, kv_heads=2, head_dim=32, policy=policy).sequence()
    sequence.append(0, *random.standard_normal((2, 100, 2, 32), dtype="f4"))
    before = sequence.usage().total_bytes
    result = sequence.compress()
    assert result.kept.shape == (1, 2) and (result.kept == 40).all()
    assert result.bytes_freed == before - sequence.usage().total_bytes > 0
    assert sequence.length(0) == 100 and sequence.slots(0, 0) == 40
    assert (sequence.compress(budget=36).kept == 36).all()


def test_decode_reads_a_part(filled):
    whole = filled.decode(1, 0)
    part = filled.decode(1, 0, 30, 5)
    numpy.testing.assert_array_equal(part.k, whole.k[30:35])
    numpy.testing.assert_array_equal(part.v, whole.v[30:35])
    with pytest.raises(libkvq.KvqArgumentError, match="begin"):
        filled.decode(1, 0, 99, 2)
    with pytest.raises(libkvq.KvqArgumentError, match="kv_head is 2"):
        filled.decode(1, 2)
