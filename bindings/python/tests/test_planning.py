"""Plans: solved, grouped, written and read."""

from math import inf

import pytest

import libkvq
from libkvq import experimental

CHOICES = [[(10, 1, 0), (6, 2, 1), (2, 3, 5)], [(8, 1, 0), (4, 1, 2)]]


def test_the_best_plan_within_limits(context):
    free = experimental.solve(context, CHOICES)
    assert (free.chosen, free.bytes, free.loss) == ([0, 0], 18, 0)
    small = experimental.solve(context, CHOICES, max_bytes=14)
    assert (small.chosen, small.bytes, small.seconds, small.loss) == ([1, 0], 14, 3, 1)
    assert small.bound <= 1
    assert experimental.solve(context, CHOICES, max_bytes=14, max_seconds=2).chosen == [0, 1]
    assert experimental.solve(context, CHOICES, goal="bytes", max_loss=3).bytes == 10
    with pytest.raises(libkvq.KvqLimitError, match="max_bytes is 5"):
        experimental.solve(context, CHOICES, max_bytes=5)
    with pytest.raises(libkvq.KvqArgumentError):
        experimental.solve(context, [[(1, 1)]])
    with pytest.raises(ValueError, match="goal"):
        experimental.solve(context, CHOICES, goal="money")


def test_rates(context):
    bits, loss = experimental.rates([100, 100], [16, 1], 600)
    assert bits == pytest.approx([4, 2]) and loss == pytest.approx(0.125)
    with pytest.raises(libkvq.KvqArgumentError, match="total_bits"):
        experimental.rates([100], [1], 100, least_bits=2)
    with pytest.raises(libkvq.KvqArgumentError, match="sensitivities"):
        experimental.rates([100], [], 100)


def test_groupings(context):
    seconds = {(0,): [4, 3], (1,): [2, 2], (0, 1): [5, inf]}
    with experimental.Fusion(context, bytes=[[8, 4], [4, 2]], loss=[[0, 1], [0, 1]], seconds=seconds) as fusion:
        groupings = fusion.groupings()
    assert (groupings[0].bytes, groupings[0].seconds, groupings[0].loss) == (12, 5, 0)
    assert groupings[0].groups[:2] == (3, 3)
    assert groupings[-1].schemes[:2] == (1, 1) and groupings[-1].groups[:2] == (1, 2)
    with pytest.raises(libkvq.KvqArgumentError):
        experimental.Fusion(context, bytes=[[8, 4]], loss=[[0]], seconds={(0,): [1, 1]})


def test_a_plan_is_kept(context):
    schemes = {"b": "tcx-3", "a": "nuq-4"}
    policy = libkvq.Policy(context, "gs2")
    plan = experimental.Plan(context, schemes, policy, bytes=1e9, seconds=0.1, loss=0.02, note="a test")
    policy.close()
    yaml = plan.save()
    plan.close()
    with pytest.raises(ValueError):
        plan.save()
    again = experimental.Plan.load(context, yaml)
    assert again.save() == yaml and again.matrices() == schemes and list(again.matrices()) == ["b", "a"]
    assert again.scheme("a") == "nuq-4" and again.scheme("c") is None
    info = again.describe()
    assert (info.n_matrices, info.has_policy, info.bytes, info.note) == (2, True, 1e9, "a test")
    cache = libkvq.Cache(context, 1, 2, 1, 64, policy=again.policy())
    assert cache.describe_layer(0).formats == "gs2"
    with pytest.raises(libkvq.KvqStateError):
        experimental.Plan(context, schemes).policy()
    with pytest.raises(libkvq.KvqFormatError, match="line 2"):
        experimental.Plan.load(context, "version: 1\nweights: {a: tcx-9}")
    with pytest.raises(libkvq.KvqArgumentError, match="tcx-9"):
        experimental.Plan(context, {"a": "tcx-9"})
