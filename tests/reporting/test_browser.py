"""The report in a real browser: it opens, its pictures are drawn, and it fits wide and narrow windows."""

from __future__ import annotations

import html as escaping
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from raptor.reporting.report import render_report
from tests.reporting.samples import sample_comparison, sample_inputs

pytestmark = pytest.mark.browser

ACCENT = np.array([0x0B, 0x66, 0xA8])

# Runs outside the report, which allows no script, and looks into it through a frame.
PROBE = """<!doctype html><body><iframe id="f" width="{width}" height="900" style="border:0" srcdoc="{page}"></iframe>
<pre id="out"></pre><script>
window.onload = () => {{
  const page = document.getElementById("f").contentDocument;
  const pictures = [...page.querySelectorAll("svg")].map(svg => {{
    const box = svg.getBoundingClientRect();
    return {{width: box.width, height: box.height, left: box.left, right: box.right,
             smallest: Math.min(...[...svg.querySelectorAll("text")].map(t => t.getBoundingClientRect().height))}};
  }});
  const cards = [...page.querySelectorAll(".card, h1, h2, pre")].map(e => e.getBoundingClientRect().right);
  document.getElementById("out").textContent = JSON.stringify({{
    title: page.title, pictures, right: Math.max(...cards), scroll: page.documentElement.scrollWidth,
    heading: page.querySelector("h1").textContent}});
}};
</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no chromium, chromium-browser or google-chrome on this machine")


def browse(chromium: str, profile: Path, *arguments: str) -> str:
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        "--virtual-time-budget=5000",
        f"--user-data-dir={profile}",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.fixture(scope="module", params=[True, False], ids=["public", "private"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report") / "report.html"
    place.write_text(render_report(sample_inputs(comparison=sample_comparison(request.param))), "utf-8")
    return place


def test_the_page_opens_and_has_its_title(chromium: str, report: Path, tmp_path: Path) -> None:
    dom = browse(chromium, tmp_path, "--dump-dom", report.as_uri())
    assert "<title>RAPTOR: report of a private fine-tuning</title>" in dom
    assert dom.count("<svg") == 12


@pytest.mark.parametrize("width", [1400, 420])
def test_it_fits_the_window_and_every_picture_has_a_size(
    chromium: str, report: Path, tmp_path: Path, width: int
) -> None:
    probe = tmp_path / "probe.html"
    page = escaping.escape(report.read_text("utf-8"), quote=True)
    probe.write_text(PROBE.format(width=width, page=page), "utf-8")
    dom = browse(chromium, tmp_path / "profile", "--window-size=1600,1000", "--dump-dom", probe.as_uri())
    found = re.search(r'<pre id="out">(.*?)</pre>', dom, flags=re.DOTALL)
    assert found is not None
    seen = json.loads(escaping.unescape(found.group(1)))
    assert seen["title"].startswith("RAPTOR")
    assert "epsilon" in seen["heading"]
    assert seen["scroll"] <= width
    assert seen["right"] <= width
    for picture in seen["pictures"]:
        assert picture["width"] > 250
        assert picture["height"] > 90
        assert picture["right"] <= width
        assert picture["smallest"] >= 7


def test_the_pictures_are_painted(chromium: str, report: Path, tmp_path: Path) -> None:
    from PIL import Image

    shot = tmp_path / "shot.png"
    browse(
        chromium,
        tmp_path / "profile",
        "--window-size=1400,2600",
        f"--screenshot={shot}",
        report.as_uri(),
    )
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    assert pixels.shape == (2600, 1400, 3)
    assert len(np.unique(pixels @ np.array([1 << 16, 1 << 8, 1]))) > 100
    painted = (np.abs(pixels - ACCENT).sum(axis=2) < 12).sum(axis=1)
    # The bar of the private model, far below the coloured edge of the cards on top.
    assert painted[420:].max() > 150
