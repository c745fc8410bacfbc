#!/usr/bin/env python3
"""Draw time of decode attention against length, a line for each format, from what gpu_bench.py measured.

usage: plot_attention.py MEASUREMENTS.json PLOT.svg

The measurements: gpu_bench.py KVQ_PROGRAM --json MEASUREMENTS.json --lengths
"""
import math

from svg_plot import INK, fail, open_plot, read_measurements, run, save_plot

BASELINE = "FlashAttention"
# Colours that stay apart for colour-blind readers; a format and its Hadamard variant share one.
COLORS = {"fp16": "#0072b2", "int8": "#009e73", "int4": "#c98200", "int3": "#b5619a", "int2": "#d55e00"}
OTHER_COLOR = "#6e7781"
LABEL_GAP = 0.052  # between neighbouring labels, in heights of the plot


def take_lines(document):
    """By name the points (tokens, microseconds) of one query of the usual heads, ascending; and the subtitle."""
    lines = {}
    for measurement in sorted(document["measurements"], key=lambda one: one["tokens"]):
        usual = all(measurement[key] == document[key] for key in ("heads", "kv_heads"))
        if usual and measurement["batch"] == measurement["queries"] == 1:
            for name, microseconds in measurement["microseconds"].items():
                lines.setdefault(name, []).append((measurement["tokens"], microseconds))
    subtitle = ("%(device)s, %(date)s; one layer, %(heads)d query and %(kv_heads)d KV heads of %(head_dim)d, batch 1"
                % document)
    return lines, subtitle


def read_lines(path):
    lines, subtitle = read_measurements(path, "gpu_bench.py --json", take_lines)
    if max((len(points) for points in lines.values()), default=0) < 2:
        fail(f"{path} has fewer than two lengths with batch 1: measure with --lengths")
    return lines, subtitle


def spread(heights, gap):
    """Heights, ascending, moved as little as keeps neighbours `gap` apart."""
    groups = []  # [members, mean of where each would start the group]
    for index, height in enumerate(heights):
        groups.append([[index], height])
        while len(groups) > 1 and groups[-1][1] < groups[-2][1] + gap * len(groups[-2][0]):
            members, start = groups.pop()
            before, before_start = groups[-1]
            n = len(before)
            total = before_start * n + (start - gap * n) * len(members)
            groups[-1] = [before + members, total / (n + len(members))]
    return [start + gap * i for members, start in groups for i in range(len(members))]


def style(name):
    if name == BASELINE:
        return {"color": INK, "linewidth": 3.2, "linestyle": (0, (3, 1.6))}
    base, _, rotation = name.partition("+")
    return {"color": COLORS.get(base, OTHER_COLOR), "linewidth": 1.8, "marker": "o", "markersize": 3.5,
            "linestyle": (0, (1, 1.2)) if rotation else "-"}


def label_lines(axes, lines):
    """Name each line at its right end, apart from its neighbours."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    ends = sorted((points[-1][1], name) for name, points in lines.items())
    heights = [(math.log(end) - low) / (high - low) for end, _ in ends]
    for (_, name), height, place in zip(ends, heights, spread(heights, LABEL_GAP)):
        color = style(name)["color"]
        axes.plot([1.005, 1.035], [height, place], transform=axes.transAxes, color=color, linewidth=0.8, clip_on=False)
        axes.text(1.042, place, "FlashAttention FP16" if name == BASELINE else name, transform=axes.transAxes,
                  color=color, fontsize=11, va="center", fontweight="bold" if name == BASELINE else "normal")


def draw(lines, subtitle, path):
    figure, axes, ticker = open_plot(left=0.075, right=0.735)
    axes.set_xscale("log", base=2)
    for name, points in lines.items():
        axes.plot(*zip(*points), zorder=2 if name == BASELINE else 3, **style(name))

    thousands = ticker.FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", " "))
    lengths = sorted({tokens for points in lines.values() for tokens, _ in points})
    axes.set_xticks(lengths)
    axes.xaxis.set_major_formatter(thousands)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(thousands)
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlim(lengths[0] / 1.08, lengths[-1] * 1.04)
    axes.set_xlabel("tokens in the cache")
    label_lines(axes, lines)
    save_plot(figure, "Time of one decoding step's attention, microseconds", subtitle, path)


if __name__ == "__main__":
    run(__doc__, read_lines, draw)
