"""Figures draw the numbers they are given, in colours that everybody can tell from the page."""

from __future__ import annotations

import io
import re
from importlib.resources import files

import numpy as np
import pytest

from raptor.reporting import style
from raptor.reporting.figures import Bar, accuracy_comparison, calibration, confusion_matrix
from raptor.reporting.metrics import Estimate
from raptor.reporting.privacy_figures import StreamCost, budget_curve, epsilon_composition
from raptor.reporting.tables import EvaluationTables
from tests.reporting.samples import LABELS, sample_tables

BARS = [
    Bar("Largest class", "a constant answer", Estimate(0.26, 0.006)),
    Bar("RAPTOR", "private", Estimate(0.52, 0.008), is_ours=True),
    Bar("Without privacy", "no guarantee", Estimate(0.62, 0.008)),
]


def texts(figure) -> list[str]:
    figure.canvas.draw()
    return [item.get_text() for item in figure.findobj(match=lambda o: hasattr(o, "get_text"))]


def test_bars_have_the_lengths_of_the_accuracies_best_on_top() -> None:
    figure = accuracy_comparison(BARS)
    bars = sorted(figure.axes[0].patches, key=lambda patch: patch.get_y())
    assert [bar.get_width() for bar in bars] == pytest.approx([26, 52, 62])
    assert {"26.0 %", "52.0 %", "62.0 %"} <= set(texts(figure))
    colours = [bar.get_facecolor() for bar in bars]
    assert colours[0] == colours[2] != colours[1]


def test_an_accuracy_of_one_stays_inside_the_figure() -> None:
    figure = accuracy_comparison([Bar("RAPTOR", "private", Estimate(1.0, 0.0), is_ours=True)])
    assert figure.axes[0].get_xlim() == (0, 100)
    assert (
        accuracy_comparison([Bar("RAPTOR", "", Estimate(0.0, 0.0), is_ours=True)]).axes[0].get_xlim()[1] > 0
    )


def test_cells_show_the_share_of_the_true_class() -> None:
    tables = EvaluationTables(np.array([[30.0, 10.0], [-3.0, 20.0]]), np.ones((4, 3)))
    figure = confusion_matrix(tables, ["a", "b"])
    assert {"75", "25", "100"} <= set(texts(figure))
    alphas = [patch.get_alpha() for patch in figure.axes[0].patches]
    assert alphas == sorted(alphas, key=float) or max(alphas) == alphas[-1]
    assert max(alphas) < 0.6


@pytest.mark.parametrize("classes", [2, 13, 45])
def test_any_number_of_classes_can_be_drawn(classes: int) -> None:
    figure = confusion_matrix(sample_tables(2.0, classes=classes), [f"class {k}" for k in range(classes)])
    assert len(figure.axes[0].patches) == classes**2
    assert ("class 1" in texts(figure)) is (classes <= 40)


def test_the_reliability_line_has_the_means_of_the_bins() -> None:
    reliability = np.array([[0.0, 0.0, 0.0], [100.0, 70.0, 60.0]])
    figure = calibration(EvaluationTables(np.eye(2), reliability))
    line = next(line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert line.get_xydata().tolist() == [[70.0, 60.0]]


def test_bins_that_drown_in_the_noise_are_left_out() -> None:
    reliability = np.array([[20.0, 5.0, 5.0], [900.0, 800.0, 700.0]])
    figure = calibration(EvaluationTables(np.eye(2), reliability, 10.0, 10.0))
    line = next(line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert len(line.get_xydata()) == 1


def test_epsilons_are_drawn_and_rounded_up() -> None:
    figure = epsilon_composition([StreamCost("shared", 1.901), StreamCost("expert", 1.7)], 3.801, 2.9999)
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([1.901, 1.7, 3.801, 2.9999])
    assert {"1.91", "1.70", "3.81", "3.00"} <= set(texts(figure))
    single = epsilon_composition([StreamCost("shared", 1.9)], 1.9, 1.9)
    assert len(single.axes[0].patches) == 2


def test_the_budget_curve_ends_below_its_budget() -> None:
    figure = budget_curve([0, 10, 20], [0.0, 1.2, 1.999], 2.0)
    assert {"budget 2", "2.00"} <= set(texts(figure))


def test_svg_is_one_element_with_text_and_no_file(tmp_path) -> None:
    svg = style.to_svg(confusion_matrix(sample_tables(2.0), LABELS), "name", "A & B", "<d>")
    assert svg.startswith("<svg viewBox=")
    assert svg.endswith("</svg>")
    assert "A &amp; B" in svg
    assert "&lt;d&gt;" in svg
    assert ">transformers</text>" in svg
    for refused in ("<style", "<metadata", "<!--", "xmlns", "font-family"):
        assert refused not in svg


def test_figures_can_be_saved_as_pictures() -> None:
    buffer = io.BytesIO()
    accuracy_comparison(BARS).savefig(buffer, format="png", dpi=60)
    assert buffer.getvalue().startswith(b"\x89PNG")


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_stand_out_from_the_page_in_both_themes(theme: str) -> None:
    css = (files("raptor.reporting") / "templates" / "report.css.jinja").read_text(encoding="utf-8")
    blocks = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in css.split(":root")[1:3]]
    colours = blocks[0] if theme == "light" else {**blocks[0], **blocks[1]}
    for name in ("ink", "muted"):
        for ground in ("surface", "page", "wash"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name in ("accent", "second", "neutral"):
        assert contrast(colours[name], colours["surface"]) >= 3, name
