"""Several threads at once."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import libkvq


def test_sequences_are_appended_to_at_once(cache, random):
    k, v = random.standard_normal((2, 200, 2, 32), dtype="f4")
    expected = cache.sequence()
    expected.append(0, k, v)

    def work(_):
        sequence = cache.sequence()
        for i in range(0, 200, 4):
            sequence.append(0, k[i : i + 4], v[i : i + 4])
        return sequence

    with ThreadPoolExecutor(8) as pool:
        for sequence in pool.map(work, range(16)):
            assert sequence.save() == expected.save()


def test_one_sequence_is_attended_to_at_once(cache, filled, random):
    queries = random.standard_normal((8, 1, 4, 32), dtype="f4")
    expected = [cache.attend(0, filled, q) for q in queries]

    def work(i):
        for _ in range(50):
            numpy.testing.assert_array_equal(cache.attend(0, filled, queries[i]), expected[i])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_readers_run_while_others_read(filled):
    """While one call reads, another begins and ends."""
    filled._enter()
    try:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(filled.length, 0).result(timeout=10) == 100
    finally:
        filled._leave()


@pytest.mark.parametrize("change", ["append", "truncate", "close", "reserve"])
def test_changes_wait_for_readers(filled, change):
    k = numpy.zeros((1, 2, 32), "f4")
    calls = {
        "append": lambda: filled.append(0, k, k),
        "truncate": lambda: filled.truncate(100),
        "close": filled.close,
        "reserve": lambda: filled.reserve(0),
    }
    filled._enter()
    thread = threading.Thread(target=calls[change])
    thread.start()
    time.sleep(0.02)
    assert thread.is_alive() and filled._pointer is not None
    filled._leave()
    thread.join(10)
    assert not thread.is_alive()
    assert filled.closed if change == "close" else filled.length(1) == 100


def test_threads_that_share_a_sequence_do_not_break_it(cache, filled, random):
    """Appends, attends, forks, truncations and a sum over all at once: only the order is open."""
    k = random.standard_normal((1, 2, 32), dtype="f4")
    q = random.standard_normal((1, 4, 32), dtype="f4")
    stop = time.monotonic() + 0.5

    def repeat(function):
        while time.monotonic() < stop:
            function()

    def append():
        for layer in range(2):
            filled.append(layer, k, k)

    def fork():
        other = filled.fork()
        other.append(0, k, k)
        other.close()

    with ThreadPoolExecutor(6) as pool:
        jobs = [
            append,
            append,
            fork,
            cache.usage,
            filled.save,
            lambda: cache.attend(0, [filled, filled], q.repeat(2, 0)),
        ]
        for job in [pool.submit(repeat, one) for one in jobs]:
            job.result()
    assert filled.length(0) == filled.length(1) > 100


def test_attends_of_an_evicting_policy_take_turns(context, random):
    cache = libkvq.Cache(context, 1, 2, 2, 32, policy="int8+h2o:64")
    sequence = cache.sequence()
    k, v = random.standard_normal((2, 100, 2, 32), dtype="f4")
    sequence.append(0, k, v)
    q = random.standard_normal((1, 2, 32), dtype="f4")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [cache.attend(0, [sequence, sequence], q.repeat(2, 0)) for _ in range(20)], range(8)))
    assert sequence.compress().kept.sum() <= 128
