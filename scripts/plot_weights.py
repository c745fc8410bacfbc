#!/usr/bin/env python3
"""Draw the error of weights in few bits against their bits, beside the bound of rate-distortion theory.

usage: plot_weights.py MEASUREMENTS.json PLOT.svg

The measurements: kvq bench quantize --json > MEASUREMENTS.json
"""
import json
import sys

INK, FAINT = "#24292f", "#d8dee4"
# Colours that stay apart for colour-blind readers; a shape for each family as well.
STYLES = {"nuq": ("#6e7781", "s", "NUQ: levels"), "vq": ("#c98200", "^", "VQ: pairs"),
          "tcq": ("#0072b2", "o", "TCQ: paths, levels from a table"),
          "tcx": ("#d55e00", "D", "TCX: paths, single weights")}


def read_families(path):
    """By family the points (bits, error / bound) up to 5 bits, ascending; and the subtitle."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        families = {}
        for row in sorted(document["rows"], key=lambda one: one["nominal_bits"]):
            if 1.5 <= row["nominal_bits"] <= 5:
                family = row["scheme"].partition("-")[0]
                families.setdefault(family, []).append((row["nominal_bits"], row["error"]))
        subtitle = "normally distributed weights, %(out)d x %(in)d, coded alone" % document
    except OSError as error:
        sys.exit(f"plot_weights.py: {path}: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(f"plot_weights.py: {path} is not what kvq bench quantize --json writes: {error!r}")
    if set(families) != set(STYLES):
        sys.exit(f"plot_weights.py: {path} has the families {sorted(families)}, must have {sorted(STYLES)}")
    return families, subtitle


def draw(families, subtitle, path):
    try:
        import matplotlib
        matplotlib.use("svg")
        from matplotlib import pyplot
        from matplotlib.ticker import FuncFormatter, NullLocator
    except ImportError as error:
        sys.exit(f"plot_weights.py: drawing needs matplotlib, on Debian the package python3-matplotlib ({error})")
    # Text stays text; nothing in the file depends on when it was drawn.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kvq", "font.size": 10,
                                "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"], "text.color": INK,
                                "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK})
    figure, axes = pyplot.subplots(figsize=(8, 5.2))
    figure.subplots_adjust(left=0.09, right=0.97, top=0.845, bottom=0.115)
    axes.set_yscale("log")
    bits = [1.5 + 0.05 * i for i in range(71)]
    axes.plot(bits, [2 ** (-2 * each) for each in bits], color=INK, linewidth=2, linestyle=(0, (3, 1.6)),
              label="bound, 2^(-2 bits)")
    for family, (color, marker, label) in STYLES.items():
        axes.plot(*zip(*families[family]), color=color, marker=marker, markersize=5, linewidth=1.6, label=label)
    axes.set_xticks([1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5])
    axes.set_yticks([0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("bits a weight")
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.legend(frameon=False, fontsize=11)
    figure.text(0.012, 0.945, "Squared error of weights in few bits, as a share of their squares", fontsize=14, fontweight="bold")
    figure.text(0.012, 0.895, subtitle, fontsize=10)
    try:
        figure.savefig(path, metadata={"Date": None})
    except OSError as error:
        sys.exit(f"plot_weights.py: {path}: {error.strerror}")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(*read_families(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
