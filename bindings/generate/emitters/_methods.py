"""Methods that follow from the header by rules, in every language: numbers go in, and a description, a file, a text, a number
or nothing comes out."""
from types import SimpleNamespace

from emitters._text import target_of

# What bindings keep from the start, or give a default.
BY_HAND = {"kvq_cache_describe", "kvq_cache_predict_usage", "qp_matrix_describe"}
LOAD = ["context", "buffer", "size", "result", "error"]
SAVE = ["buffer", "capacity", "size"]


def method(handle, one):
    """None if the function follows other rules."""
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
    elif inputs and inputs[-1]["type"].get("to", {}).get("kind") == "struct":
        found.gives, found.struct, inputs = "description", inputs[-1]["type"]["to"]["name"], inputs[:-1]
    found.inputs = inputs
    is_plain = receiver["c"].removeprefix("const ") == handle["name"] + "*" and all(it["c"] == "int32_t" for it in inputs)
    return found if is_plain else None


def objects(api):
    """(handle, the function that makes one from a file alone or None, methods) of stable handles that have some."""
    for handle in api["handles"]:
        owned = [one for one in api["functions"] if one["name"].startswith(handle["name"] + "_") and not one["experimental"]]
        load = next((one for one in owned if [it["name"] for it in one["parameters"]] == LOAD), None)
        methods = [found for found in (method(handle, one) for one in owned) if found]
        if methods and not handle["experimental"]:
            yield handle, load, methods
