"""What the plots have in common: a program that turns measurements in JSON into an SVG, and how that looks."""
import json
import pathlib
import sys

INK, FAINT, PAPER = "#24292f", "#d8dee4", "#ffffff"

# The same on dark pages: colours of curves serve both.
DARK = f"""<style type="text/css">
@media (prefers-color-scheme: dark) {{
 [style*="fill: {INK}"] {{fill: #e6edf3 !important}}
 [style*="fill: {PAPER}"] {{fill: #0d1117 !important}}
 [style*="stroke: {INK}"], [style*="stroke: #000000"] {{stroke: #e6edf3 !important}}
 [style*="stroke: {FAINT}"] {{stroke: #30363d !important}}
}}</style>
"""


def fail(reason):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {reason}")


def run(usage, read, draw):
    """The program: `draw` gets what `read` makes of the first argument, and the second one."""
    if len(sys.argv) != 3:
        sys.exit(usage)
    draw(*read(sys.argv[1]), sys.argv[2])


def read_measurements(path, writer, take):
    """What `take` finds in the JSON of a file, which `writer` should have written."""
    try:
        with open(path, encoding="utf-8") as file:
            return take(json.load(file))
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fail(f"{path} is not what {writer} writes: {error!r}")


def import_pyplot():
    """matplotlib's pyplot and tickers."""
    try:
        import matplotlib
        matplotlib.use("svg")
        from matplotlib import pyplot, ticker
    except ImportError as error:
        fail(f"drawing needs matplotlib, on Debian the package python3-matplotlib ({error})")
    # Text stays text; nothing in the file depends on when it was drawn.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kvq", "font.size": 10,
                                "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"], "text.color": INK,
                                "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK})
    return pyplot, ticker


def style_axes(axes):
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)


def open_plot(left, right):
    """A figure with axes between these shares of its width, and matplotlib's tickers."""
    pyplot, ticker = import_pyplot()
    # 576 points wide, shown at 800 pixels.
    figure, axes = pyplot.subplots(figsize=(8, 5.2))
    figure.subplots_adjust(left=left, right=right, top=0.845, bottom=0.115)
    axes.set_yscale("log")
    style_axes(axes)
    return figure, axes, ticker


def open_plots(n):
    """A figure with `n` axes below each other, and matplotlib's tickers."""
    pyplot, ticker = import_pyplot()
    figure, all_axes = pyplot.subplots(n, figsize=(8, 4.6 * n), squeeze=False, layout="constrained")
    for axes in all_axes.flat:
        style_axes(axes)
    return figure, list(all_axes.flat), ticker


def save_plot(figure, title, subtitle, path):
    if title:
        figure.text(0.012, 0.945, title, fontsize=14, fontweight="bold")
        figure.text(0.012, 0.895, subtitle, fontsize=10)
    try:
        figure.savefig(path, metadata={"Date": None})
        file = pathlib.Path(path)
        file.write_text(file.read_text(encoding="utf-8").replace("</defs>", DARK + "</defs>", 1), encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror}")
