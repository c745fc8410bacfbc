#!/usr/bin/env python3
"""Draw what KV formats lose against their true bits: mean KL divergence from FP16, a curve for each family.

usage: plot_kl.py MEASUREMENTS.json PLOT.svg

The measurements: measure_kl.py KVQ_PROGRAM MODEL TEXT MEASUREMENTS.json
"""
from svg_plot import fail, open_plot, read_measurements, run, save_plot

# Colours that stay apart for colour-blind readers; scalar shapes are circles, those of a trellis diamonds.
STYLES = {"int": ("#6e7781", "s", "INT"),
          "int+hadamard": ("#c98200", "^", "INT + Hadamard"),
          "commvq": ("#b5619a", "v", "CommVQ, trained"),
          "gs": ("#56b4e9", "o", "gs, page means"),
          "gt": ("#0072b2", "D", "gt, page means"),
          "gs 1": ("#8fd3ba", "o", "gs, one centre"),
          "gt 1": ("#009e73", "D", "gt, one centre"),
          "gs 256": ("#f0a27a", "o", "gs, 256 centres"),
          "gt 256": ("#d55e00", "D", "gt, 256 centres")}


def take_families(document):
    """By family the points (bits, divergence), ascending; and the subtitle."""
    families = {}
    for row in sorted(document["rows"], key=lambda one: one["bits"]):
        family = "commvq" if row["family"].startswith("commvq") else row["family"]
        families.setdefault(family, []).append((row["bits"], row["kl_mean"]))
    windows = "all windows" if document["windows"] is None else "%(windows)d windows" % document
    subtitle = ("model %(model)s, %(text)s, " + windows + " of %(context)d tokens; bits of everything at %(length)d tokens"
                ) % document
    return families, subtitle


def read_families(path):
    families, subtitle = read_measurements(path, "measure_kl.py", take_families)
    if not families or not set(families) <= set(STYLES):
        fail(f"{path} has the families {sorted(families)}, must have some of {sorted(STYLES)}")
    return families, subtitle


def draw(families, subtitle, path):
    figure, axes, ticker = open_plot(left=0.095, right=0.97)
    for family, (color, marker, label) in STYLES.items():
        if family in families:
            axes.plot(*zip(*families[family]), color=color, marker=marker, markersize=5, linewidth=1.6, label=label)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_locator(ticker.MultipleLocator(0.5))
    axes.set_xlabel("true bits a number of the cache")
    axes.legend(frameon=False, fontsize=11)
    save_plot(figure, "Mean KL divergence of next tokens from FP16, nats", subtitle, path)


if __name__ == "__main__":
    run(__doc__, read_families, draw)
