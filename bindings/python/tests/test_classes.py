"""Objects of another class, copies and pickles are refused: the library cannot tell one handle from another."""

import copy
import inspect
import pickle
import re
import typing

import numpy
import pytest

import libkvq
from libkvq import experimental
from libkvq._handle import Handle

KINDS = {
    name: kind
    for module in (libkvq, experimental)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Handle)
}


def kind_in(annotation):
    """The class of object in an annotation such as Optional[Policy] or Mapping[str, Matrix], and the outer type."""
    if isinstance(annotation, type) and issubclass(annotation, Handle):
        return annotation
    return next(filter(None, map(kind_in, typing.get_args(annotation))), None)


def collection_of(annotation):
    """How an argument holds its objects: list, dict, or None for the object itself."""
    origin = typing.get_origin(annotation)
    if origin is typing.Union:
        kinds = [one for one in typing.get_args(annotation) if kind_in(one) is not None]
        return None if kinds[0] is kind_in(annotation) else collection_of(kinds[0])
    if origin is None:
        return None
    return dict if len(typing.get_args(annotation)) == 2 else list


def public_functions():
    """Everything that can be called, by name: functions of the modules, methods and constructors."""
    for module in (libkvq, experimental):
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                yield name, getattr(module, name)
    for name, kind in KINDS.items():
        for method, one in inspect.getmembers(kind, callable):
            if method == "__init__" or not method.startswith("_"):
                yield "%s.%s" % (name, method), one


def parameters_with_objects():
    for name, function in public_functions():
        hints = typing.get_type_hints(
            function, {**KINDS, **function.__globals__}
        )  # some are imported by type checkers only
        hints.pop("return", None)
        for parameter, annotation in hints.items():
            kind = kind_in(annotation)
            if kind is not None:
                yield pytest.param(name, parameter, kind, collection_of(annotation), id="%s(%s)" % (name, parameter))


PARAMETERS = list(parameters_with_objects())
W = numpy.ones((64, 64), "f4")
#: Values of parameters without a default.
VALUES = {
    "data": b"",
    "yaml": "int4",
    "name": "a",
    "text": "",
    "w": W,
    "x": W[:1],
    "k": numpy.ones((1, 2, 32), "f4"),
    "v": numpy.ones((1, 2, 32), "f4"),
    "q": numpy.ones((1, 4, 32), "f4"),
    "layer": 0,
    "batch": 1,
    "n_layers": 1,
    "q_heads": 4,
    "kv_heads": 2,
    "head_dim": 32,
    "choices": [[(1.0, 1.0, 1.0)]],
    "bytes": [[1.0]],
    "loss": [[1.0]],
    "seconds": {(0,): [1.0]},
    "block_tokens": 32,
    "blocks": [],
    "max_sequences": 1,
    "max_tokens": 1,
    "max_blocks": 1,
}


@pytest.fixture
def objects(context, cache, filled):
    """An object of each class that a function takes or that has methods which do."""
    made = {
        "Context": context,
        "Cache": cache,
        "Sequence": filled,
        "Policy": libkvq.Policy(context, "int4"),
        "Matrix": libkvq.Matrix.quantize(context, W),
        "CodebookTrainer": experimental.CodebookTrainer(context, 1, 2, 32),
        "CentresTrainer": experimental.CentresTrainer(context, 1, 2, 32),
        "Plan": experimental.Plan(context, {"a": "nuq-4"}),
        "Fusion": experimental.Fusion(context, [[1.0]], [[1.0]], {(0,): [1.0]}),
    }
    with pytest.raises(libkvq.KvqError):  # nothing is trained, so that these have no objects; they check all the same
        libkvq.Codebook.load(context, b"")
    return made


def test_every_way_to_give_an_object_is_found():
    found = {one.id for one in PARAMETERS}
    assert found >= {
        "Matrix.quantize(context)",
        "Matrix.load(context)",
        "Codebook.load(context)",
        "Cache.__init__(router)",
        "Cache.append(sequences)",
        "Cache.attend(sequences)",
        "Cache.extend(sequences)",
        "CodebookTrainer.resume(codebook)",
        "Plan.__init__(policy)",
        "linear_shared(matrices)",
        "save_matrices(matrices)",
        "solve(context)",
        "tune(matrices)",
    }
    assert len(found) > 30


@pytest.mark.parametrize("name, parameter, kind, collection", PARAMETERS)
def test_an_object_of_another_class_is_refused_by_name(objects, name, parameter, kind, collection):
    owner, _, method = name.rpartition(".")
    function = getattr(experimental if hasattr(experimental, name) else libkvq, name) if not owner else None
    if owner:
        own = KINDS[owner]
        static = inspect.getattr_static(own, method)
        function = (
            own if method == "__init__" else getattr(own if isinstance(static, classmethod) else objects[owner], method)
        )
    arguments = {}
    for one in inspect.signature(function).parameters.values():
        if one.default is one.empty and one.name != parameter:
            right = {"context": "Context", "sequences": "Sequence", "policy": "Policy", "matrices": "Matrix"}.get(
                one.name
            )
            arguments[one.name] = VALUES[one.name] if right is None else objects[right]
            if one.name == "matrices":
                arguments[one.name] = [objects["Matrix"]]
    for wrong in (
        "Policy" if kind is not libkvq.Policy else "Cache",
        "Cache" if kind is not libkvq.Cache else "Policy",
    ):
        for value in (objects[wrong], 5):
            given = {list: [value], dict: {"a": value}}.get(collection, value)
            message = r"^%s(\[\S+\])? is %s, must be .*\b%s\b" % (parameter, type(value).__name__, kind.__name__)
            with pytest.raises(TypeError, match=message):
                function(**arguments, **{parameter: given})


@pytest.mark.parametrize("value", [5, "text", None], ids=repr)
@pytest.mark.parametrize("function", ["append", "attend", "extend"])
def test_what_is_no_list_of_sequences_is_refused_by_name(cache, function, value):
    k = numpy.ones((1, 2, 32), "f4")
    arguments = {"append": [k, k], "attend": [k], "extend": [k, k, k]}[function]
    with pytest.raises(TypeError, match=r"^sequences(\[0\])? is %s, must be" % type(value).__name__):
        getattr(cache, function)(0, value, *arguments)


def test_a_method_of_another_class_is_refused(cache):
    """`Sequence.length(cache, 0)` passes the cache as `self`."""
    with pytest.raises(Exception, match="argument 1: .*TypeError"):
        libkvq.Sequence.length(cache, 0)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_objects_have_one_owner(objects, copied):
    advice = {"Sequence": "fork()", "Matrix": "save_matrices()", "Policy": "save()"}
    for name, one in objects.items():
        with pytest.raises(TypeError, match="a %s can be neither copied nor pickled: .*" % name) as caught:
            copied(one)
        assert advice.get(name, "") in str(caught.value)
        assert not one.closed
    for trained in (libkvq.Codebook, libkvq.Centres, libkvq.Router):
        with pytest.raises(TypeError, match=re.escape("load what save() returns")):
            copied(trained.__new__(trained))
    assert objects["Sequence"].length(0) == 100
