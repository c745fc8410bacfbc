#!/usr/bin/env python3
"""Draw what the kvq program measures.

usage: plot_json.py MEASUREMENTS.json PLOT.svg

The measurements: what kvq prints with --json for eval perplexity, eval eviction, eval error, bench attend (of several
lengths), quantize, or plan --frontier.
"""
import math

from svg_plot import fail, open_plots, read_measurements, run, save_plot

# Colours that stay apart for colour-blind readers.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#b5619a", "#c98200", "#56b4e9", "#6e7781")
MEBIBYTE = 1 << 20


class Plot:
    def __init__(self, title, x_label, y_label, log_x=False, log_y=True):
        self.title, self.x_label, self.y_label, self.log_x, self.log_y = title, x_label, y_label, log_x, log_y
        self.series = []  # (name, points, whether they are a line, texts beside them)

    def add(self, name, points, line=True, texts=()):
        kept = [i for i, (x, y) in enumerate(points) if (x > 0 or not self.log_x) and (y > 0 or not self.log_y)]
        self.series.append((name, [points[i] for i in kept], line, [texts[i] for i in kept] if texts else []))

    def draw(self, axes, ticker, color):
        axes.set_title(self.title, fontsize=11, loc="left")
        axes.set_xscale("log" if self.log_x else "linear")
        axes.set_yscale("log" if self.log_y else "linear")
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        for name, points, line, texts in self.series:
            style = {"linewidth": 1.6, "marker": "."} if line else {"linestyle": "", "marker": "o", "markersize": 5}
            axes.plot(*(zip(*points) if points else ([], [])), color=color[name], label=name, **style)
            for point, text in zip(points, texts):
                axes.annotate(text, point, xytext=(7, -3), textcoords="offset points", fontsize=9)
        for axis, is_log in ((axes.xaxis, self.log_x), (axes.yaxis, self.log_y)):
            if is_log:
                axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
                axis.set_minor_locator(ticker.NullLocator())
            axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        if len(self.series) > 1:
            axes.legend(frameon=False, fontsize=9)


def perplexity_plots(document):
    rows = document.get("formats", [document])
    bits = [row["kv_bits"] for row in rows]
    names = [row.get("kv", "") for row in rows]
    plots = []
    if "kl_mean" in rows[0]:
        divergence = Plot("What is lost against " + rows[0]["against"], "bits per scalar, everything counted",
                          "mean KL divergence, nats")
        divergence.add("formats", list(zip(bits, (row["kl_mean"] for row in rows))), False, names)
        plots.append(divergence)
    perplexity = Plot("Perplexity over %d tokens" % rows[0]["tokens"], "bits per scalar, everything counted", "perplexity",
                      log_y=False)
    perplexity.add("formats", list(zip(bits, (row["perplexity"] for row in rows))), False, names)
    if plots:
        perplexity.add(rows[0]["against"], sorted(zip(bits, (row["reference_perplexity"] for row in rows))))
    return [*plots, perplexity]


def eviction_plots(document):
    def plot(title, y_label, budget, figure):
        result = Plot(title, "tokens that a KV head keeps, on average", y_label, log_x=True, log_y=False)
        evicting = [row for row in document["rows"] if row["method"] != "full"]
        for method in dict.fromkeys(row["method"] for row in evicting):
            result.add(method, sorted((row[budget], row[figure]) for row in evicting if row["method"] == method))
        result.add("full cache", sorted((row[budget], document["rows"][0][figure]) for row in evicting))
        return result

    plots, context = [], document["context"]
    if document["windows"]:
        plots.append(plot("Second halves of %d windows of %d tokens" % (document["windows"], context), "perplexity",
                          "budget", "perplexity"))
    if document["needles"]:
        plots.append(plot("%d keys hidden in %d tokens" % (document["needles"], context), "share that is found",
                          "needle_budget", "accuracy"))
    return plots


def error_plots(document):
    plot = Plot("Errors of keys and values", "layer", "squared error over squared norm")
    for side in ("key", "value"):
        plot.add(side + "s", [(layer["layer"], layer[side + "_error"]) for layer in document["layers"]])
    return [plot]


def attend_plots(document):
    plot = Plot("Attention of one layer on %(device_name)s, %(isa)s" % document, "tokens in the cache", "microseconds",
                log_x=True)
    rows = [{"length": document.get("length"), **row} for row in document.get("rows", [document])]
    several = len({row["length"] for row in rows}) > 1
    plot.add("fp16", sorted({row["length"]: row["fp16_microseconds"] for row in rows}.items()), several)
    for name in dict.fromkeys(row["kv"] for row in rows):
        plot.add(name, sorted((row["length"], row["microseconds"]) for row in rows if row["kv"] == name), several)
    return [plot]


def quantize_plots(document):
    def plot(title, figure):
        result = Plot(title, "layer", "squared error over squared norm")
        roles = {}
        for layer in document["layers"]:
            place = layer["name"].split(".")
            roles.setdefault(place[-1], []).append((int(next(filter(str.isdigit, place))), layer[figure]))
        for role, points in roles.items():
            result.add(role, points)
        return result

    has_hessians = "proxy_error" in document
    return [plot("Errors of weights", "error")] + ([plot("Errors of outputs", "proxy_error")] if has_hessians else [])


def plan_plots(document):
    def points(plans):
        return [(plan["bytes"] / MEBIBYTE, plan["loss"]) for plan in plans]

    frontier = document["frontier"]
    best = Plot("What the best plans lose", "MiB of what is planned", "expected divergence, nats")
    best.add("best plans", points(frontier["best"]))
    uniform = frontier.get("uniform") or []
    best.add("the same for all", points(
        each for each in uniform
        if not any(other["bytes"] < each["bytes"] and other["loss"] < each["loss"] for other in uniform)), False)
    best.add("this plan", points([document]), False)
    layers = Plot("What this plan loses by layer", "layer", "expected divergence, nats")
    weights = {}
    for matrix in document.get("weights", []):
        layer = int(next(filter(str.isdigit, matrix["name"].split("."))))
        weights[layer] = weights.get(layer, 0.0) + matrix["loss"]
    if weights:
        layers.add("weights", sorted(weights.items()))
    if "cache" in document:
        layers.add("keys and values", [(i, layer["loss"]) for i, layer in enumerate(document["cache"])])
    return [best, layers]


def take_plots(document):
    """What the document measures, by a field that only it has."""
    rows = document.get("rows") or document.get("formats") or document.get("layers") or [document]
    if "frontier" in document:
        return (plan_plots(document),)
    for field, take in (("key_error", error_plots), ("scheme", quantize_plots), ("method", eviction_plots),
                        ("microseconds", attend_plots), ("perplexity", perplexity_plots)):
        if field in rows[0]:
            return (take(document),)
    raise KeyError("nothing that can be drawn")


def draw(plots, path):
    figure, all_axes, ticker = open_plots(len(plots))
    names = list(dict.fromkeys(name for plot in plots for name, *_ in plot.series))
    color = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    for plot, axes in zip(plots, all_axes):
        if not any(math.isfinite(y) for _, points, *_ in plot.series for _, y in points):
            fail("nothing to draw: " + plot.title)
        plot.draw(axes, ticker, color)
    save_plot(figure, "", "", path)


if __name__ == "__main__":
    run(__doc__, lambda path: read_measurements(path, "kvq --json", take_plots), draw)
