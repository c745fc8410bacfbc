"""Methods generated for every language: they take numbers and return a description, file, text, number or nothing."""
from types import SimpleNamespace

from emitters._text import target_of

# Functions whose results bindings cache, or whose arguments have defaults.
BY_HAND = {"kvq_cache_describe", "kvq_cache_predict_usage", "qp_matrix_describe"}
LOAD = ["context", "buffer", "size", "result", "error"]
SAVE = ["buffer", "capacity", "size"]


def method(handle, one):
    """Describe the method of a function; None if it needs hand-written code."""
    if one["name"] in BY_HAND or one["returns"]["c"] != "kvq_status":
        return None
    parameters = one["parameters"][:-1]
    of_cache = handle["name"] == "kvq_sequence" and parameters[0]["name"] == "cache"
    receiver, inputs = parameters[of_cache], parameters[of_cache + 1:]
    found = SimpleNamespace(function=one, name=one["name"][len(handle["name"]) + 1:], of_cache=of_cache, gives="nothing",
                            alone="const" not in receiver["c"], struct=None)
    if [it["name"] for it in inputs[-3:]] == SAVE:
        found.gives = "text" if target_of(inputs[-3]["type"])["kind"] == "character" else "file"
        inputs = inputs[:-3]
    elif inputs and inputs[-1]["c"] == "int32_t*":
        found.gives, inputs = "number", inputs[:-1]
    elif inputs and inputs[-1]["type"].get("to", {}).get("kind") == "struct" and "const" not in inputs[-1]["c"]:
        found.gives, found.struct, inputs = "description", inputs[-1]["type"]["to"]["name"], inputs[:-1]
    found.inputs = inputs
    is_plain = receiver["c"].removeprefix("const ") == handle["name"] + "*" and all(it["c"] == "int32_t" for it in inputs)
    return found if is_plain else None


def objects(api):
    """Yield (handle, function that creates it from a file only or None, methods) of each stable handle with methods."""
    for handle in api["handles"]:
        owned = [one for one in api["functions"] if one["name"].startswith(handle["name"] + "_") and not one["experimental"]]
        load = next((one for one in owned if [it["name"] for it in one["parameters"]] == LOAD), None)
        methods = [found for found in (method(handle, one) for one in owned) if found]
        if methods and not handle["experimental"]:
            yield handle, load, methods
