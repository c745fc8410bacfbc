"""Planning: which option of every choice, so that least is lost within bytes and seconds."""

from __future__ import annotations

from ctypes import addressof, byref, c_char_p, c_double, c_int32, sizeof
from dataclasses import dataclass
from math import inf
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _native
from ._context import Context
from ._errors import KvqArgumentError, assign, call, initialised
from ._handle import Handle, reading
from ._infos import PlanFusionInfo, PlanGroupingInfo, PlanInfo, PlanMatrixInfo
from ._policy import Policy
from ._text import encoded, text, value_of

#: Bytes, seconds and loss.
Costs = Tuple[float, float, float]


@dataclass(frozen=True)
class Solution:
    """A plan."""

    chosen: List[int]
    """The option of each choice, from 0."""
    bytes: float
    seconds: float
    loss: float
    bound: float
    """No plan that keeps the limits has a smaller goal."""


def solve(
    context: Context,
    choices: Sequence[Sequence[Costs]],
    goal: Union[str, int] = "loss",
    max_bytes: float = inf,
    max_seconds: float = inf,
    max_loss: float = inf,
    tolerance: float = 1e-4,
) -> Solution:
    """Take one option of every choice, so that the goal is as small as possible and the limits hold.

    :param choices: the options of each, which are (bytes, seconds, loss).
    :param goal: "loss", "bytes" or "seconds".
    :param tolerance: share of the smallest goal by which the plan's may be above it.
    :raises KvqLimitError: no plan keeps the limits; the message says what is missing.
    """
    options = [option for choice in choices for option in choice]
    if any(len(option) != 3 for option in options):
        raise KvqArgumentError("an option must be (bytes, seconds, loss)")
    counts = (c_int32 * len(choices))(*(len(choice) for choice in choices))
    columns = [(c_double * len(options))(*(option[i] for option in options)) for i in range(3)]
    problem = initialised(_native.kvq_plan_problem, n_choices=len(choices), max_bytes=max_bytes, tolerance=tolerance)
    assign(problem, max_seconds=max_seconds, max_loss=max_loss, goal=value_of(_native.kvq_plan_goal, "goal", goal))
    problem.option_counts = addressof(counts)
    problem.bytes, problem.seconds, problem.loss = (addressof(one) for one in columns)
    chosen = (c_int32 * len(choices))()
    costs: Any = _native.kvq_plan_costs(sizeof(_native.kvq_plan_costs))
    with Context._given("context", context)._shared() as pointer:
        context._call(_native.kvq_plan_solve, pointer, byref(problem), chosen, len(choices), byref(costs))
    return Solution(list(chosen), costs.bytes, costs.seconds, costs.loss, costs.bound)


def rates(
    weights: Sequence[float], sensitivities: Sequence[float], total_bits: float, least_bits: float = 0.0
) -> Tuple[List[float], float]:
    """The bits of a weight that each matrix would get if codes were as good as codes can be, and what is lost then.

    :param weights: numbers in each matrix.
    :param sensitivities: loss of each at a relative squared error of 1.
    :param total_bits: of all weights.
    """
    n = len(weights)
    if len(sensitivities) != n:
        raise KvqArgumentError("sensitivities has %d numbers, weights has %d" % (len(sensitivities), n))
    numbers = c_double * n
    bits, loss = numbers(), c_double()
    given = numbers(*weights), numbers(*sensitivities)
    call(_native.kvq_plan_rates, n, *given, least_bits, total_bits, bits, byref(loss))
    return list(bits), loss.value


class Fusion(Handle):
    """All ways to group matrices that read the same inputs, for kernels that fuse only equal schemes.

    :param bytes: of each matrix in each scheme.
    :param loss: the same.
    :param seconds: by group, a tuple of the matrices' numbers: of each scheme; infinity: not possible.
    """

    _new = _native.kvq_plan_fusion
    _destroy = _native.kvq_plan_fusion_destroy

    def __init__(
        self,
        context: Context,
        bytes: Sequence[Sequence[float]],
        loss: Sequence[Sequence[float]],
        seconds: Mapping[Tuple[int, ...], Sequence[float]],
    ) -> None:
        n_schemes = len(bytes[0]) if bytes else 0
        rows = list(bytes) + list(loss) + list(seconds.values())
        if len(loss) != len(bytes) or any(len(row) != n_schemes for row in rows):
            raise KvqArgumentError("bytes, loss and seconds must have a number for each scheme of each matrix or group")
        options = initialised(_native.kvq_plan_fusion_options, n_members=len(bytes), n_schemes=n_schemes)
        assign(options, n_groups=len(seconds))
        groups = (c_int32 * len(seconds))(*(sum(1 << i for i in group) for group in seconds))
        tables = [
            (c_double * (len(table) * n_schemes))(*(x for row in table for x in row))
            for table in (list(bytes), list(loss), list(seconds.values()))
        ]
        options.groups = addressof(groups)
        options.bytes, options.loss, options.seconds = (addressof(one) for one in tables)
        with Context._given("context", context)._shared() as pointer:
            self._create(context._hooks, _native.kvq_plan_fusion_create, pointer, byref(options))

    def groupings(self) -> List[PlanGroupingInfo]:
        """Those that no other one beats, the ones with the smallest loss first."""
        info = self._described(_native.kvq_plan_fusion_describe, _native.kvq_plan_fusion_info, PlanFusionInfo._of)
        function, struct = _native.kvq_plan_fusion_describe_grouping, _native.kvq_plan_grouping_info
        return [self._described(function, struct, PlanGroupingInfo._of, i) for i in range(info.n_groupings)]


class Plan(Handle):
    """What a planner decided: the scheme of each matrix, and how caches store pages.

    :param matrices: schemes by name.
    :param policy: of caches; None: the plan says nothing of them.
    :param bytes: expected, like `seconds` and `loss`.
    """

    _new = _native.kvq_plan
    _destroy = _native.kvq_plan_destroy

    def __init__(
        self,
        context: Context,
        matrices: Optional[Mapping[str, str]] = None,
        policy: Optional[Policy] = None,
        bytes: float = 0.0,
        seconds: float = 0.0,
        loss: float = 0.0,
        note: str = "",
    ) -> None:
        read = Context._given("context", context), Policy._given_or_none("policy", policy)
        given = dict(matrices or {})
        content = initialised(_native.kvq_plan_content, n_matrices=len(given), bytes=bytes, seconds=seconds, loss=loss)
        names = (c_char_p * len(given))(*(encoded("a name", one) for one in given))
        schemes = (c_char_p * len(given))(*(encoded("a scheme", one) for one in given.values()))
        content.names, content.schemes = addressof(names), addressof(schemes)
        content.note = encoded("note", note)
        self._context = context
        with reading(*read) as (pointer, content.policy):
            self._create(context._hooks, _native.kvq_plan_create, pointer, byref(content))

    @classmethod
    def load(cls, context: Context, yaml: Union[str, bytes]) -> Plan:
        """Read what ``save`` or ``kvq plan`` wrote."""
        made = cls.__new__(cls)
        made._context = context
        data = encoded("yaml", yaml)
        with Context._given("context", context)._shared() as pointer:
            made._create(context._hooks, _native.kvq_plan_load, pointer, data, len(data))
        return made

    def save(self) -> str:
        """YAML, which ``kvq quantize --plan`` reads too."""
        with self._shared() as pointer:
            return self._saved(_native.kvq_plan_save, pointer).decode("utf-8")

    def describe(self) -> PlanInfo:
        """What is in the plan."""
        return self._described(_native.kvq_plan_describe, _native.kvq_plan_info, PlanInfo._of)

    def matrices(self) -> Dict[str, str]:
        """Schemes by the matrices' names, in the order of the plan."""
        function, struct = _native.kvq_plan_describe_matrix, _native.kvq_plan_matrix_info
        n = self.describe().n_matrices
        found = [self._described(function, struct, PlanMatrixInfo._of, i) for i in range(n)]
        return {one.name: one.scheme for one in found}

    def scheme(self, name: str) -> Optional[str]:
        """The scheme of a matrix; None if the plan does not name it."""
        with self._shared() as pointer:
            found = _native.kvq_plan_scheme(pointer, encoded("name", name))
        return None if found is None else text(found)

    def policy(self) -> Policy:
        """The policy of caches."""
        made = Policy.__new__(Policy)
        made._context = self._context
        with self._shared() as pointer:
            made._create(self._hooks, _native.kvq_plan_policy, pointer)
        return made
