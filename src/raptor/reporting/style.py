"""One look for all figures: in files on white, and inline in the report in the reader's light or dark theme.

Colour carries one meaning: the accent is what RAPTOR did or chose, the second colour is its counterpart, all
else is grey. Every bar and line is labelled in words as well, so no figure needs colour to be read.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE, SURFACE = "#1c2127", "#59636f", "#d4dae1", "#fdfdfc"
ACCENT, SECOND, NEUTRAL = "#0b66a8", "#b8570a", "#8b95a1"

# Inline figures refer to the variables of the page, so that they follow its theme.
CSS_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    SURFACE: "var(--surface)",
    ACCENT: "var(--accent)",
    SECOND: "var(--second)",
    NEUTRAL: "var(--neutral)",
}

# Any: matplotlib types the keys one by one.
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 11.0,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "text.color": INK,
    # Names of classes are text, also with dollar signs in them.
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "figure.facecolor": SURFACE,
    "savefig.facecolor": SURFACE,
}


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """A new figure of the given size in inches, in the project's style.

    No pyplot: figures here belong to no global state and need no display.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def bare(axes: Axes, *, grid: str = "x") -> None:
    """Grid lines along one axis and no frame but the base line."""
    axes.grid(axis=grid, linewidth=0.8)  # type: ignore[arg-type]
    for side in ("left", "bottom"):
        axes.spines[side].set_visible((side == "bottom") is (grid == "y"))


def to_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an inline SVG element that scales to its container.

    name: unique in the page; prefixes every id. title and description are read out by screen readers.
    Text stays text, colours become the page's variables, and nothing refers to a file or an address.
    """
    import matplotlib

    buffer = StringIO()
    settings = {**_STYLE, "svg.fonttype": "none", "svg.hashsalt": name}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # The reader's browser draws the text, with fonts of its own.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    view_box = re.search(r'viewBox="([^"]+)"', text)
    if view_box is None:
        raise ValueError(f"The figure {name} has no viewBox.")
    text = text[text.index(">") + 1 :].replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    # The page sets the typeface, and a style element inside an SVG would reach the whole page.
    text = re.sub(r"font-family: [^;\"]+;? ?", "", text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    for colour, variable in CSS_VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r"\n\s*", "\n", text).strip()
    return (
        f'<svg viewBox="{view_box.group(1)}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>\n{text}'
    )
