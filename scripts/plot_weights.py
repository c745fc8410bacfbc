#!/usr/bin/env python3
"""Draw the error of weights in few bits against their bits, beside the bound of rate-distortion theory.

usage: plot_weights.py MEASUREMENTS.json PLOT.svg

The measurements: kvq bench quantize --json > MEASUREMENTS.json
"""
from svg_plot import INK, fail, open_plot, read_measurements, run, save_plot

# Colours that stay apart for colour-blind readers; a shape for each family as well.
STYLES = {"nuq": ("#6e7781", "s", "NUQ: levels"), "vq": ("#c98200", "^", "VQ: pairs"),
          "tcq": ("#0072b2", "o", "TCQ: paths, levels from a table"),
          "tcx": ("#d55e00", "D", "TCX: paths, single weights")}


def take_families(document):
    """By family the points (bits, error) up to 5 bits, ascending; and the subtitle."""
    families = {}
    for row in sorted(document["rows"], key=lambda one: one["nominal_bits"]):
        if 1.5 <= row["nominal_bits"] <= 5:
            family = row["scheme"].partition("-")[0]
            families.setdefault(family, []).append((row["nominal_bits"], row["error"]))
    return families, "normally distributed weights, %(out)d x %(in)d, coded alone" % document


def read_families(path):
    families, subtitle = read_measurements(path, "kvq bench quantize --json", take_families)
    if set(families) != set(STYLES):
        fail(f"{path} has the families {sorted(families)}, must have {sorted(STYLES)}")
    return families, subtitle


def draw(families, subtitle, path):
    figure, axes, ticker = open_plot(left=0.09, right=0.97)
    bits = [1.5 + 0.05 * i for i in range(71)]
    axes.plot(bits, [2 ** (-2 * each) for each in bits], color=INK, linewidth=2, linestyle=(0, (3, 1.6)),
              label="bound, 2^(-2 bits)")
    for family, (color, marker, label) in STYLES.items():
        axes.plot(*zip(*families[family]), color=color, marker=marker, markersize=5, linewidth=1.6, label=label)
    axes.set_xticks([1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5])
    axes.set_yticks([0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001])
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("bits a weight")
    axes.legend(frameon=False, fontsize=11)
    save_plot(figure, "Squared error of weights in few bits, as a share of their squares", subtitle, path)


if __name__ == "__main__":
    run(__doc__, read_families, draw)
