"""The report: self-contained, complete, true in every case, and safe with any class name."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from raptor.reporting.comparison import compare
from raptor.reporting.report import ReportInputs, big_numbers, render_report, verdict
from tests.reporting.samples import LABELS, sample_comparison, sample_guarantee, sample_inputs, sample_tables

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Tags with their attributes, the text, and whether every tag is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.text))


@pytest.fixture(scope="module")
def html() -> str:
    return render_report(sample_inputs())


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_nothing_is_loaded_and_nothing_runs(html: str, page: Page) -> None:
    assert not {"script", "link", "iframe", "object", "embed", "img"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"src", "href", "xlink:href", "data", "srcset"}:
                assert (value or "").startswith("#")
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert "@import" not in html
    assert "http" not in html.replace("http-equiv", "")


def test_ids_are_unique_and_every_reference_has_its_target(html: str, page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    targets = set(re.findall(r'href="#([^"]+)"', html)) | set(re.findall(r"url\(#([^)]+)\)", html))
    assert targets <= set(ids)


def test_every_figure_has_a_title_and_a_description(page: Page) -> None:
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    # Six of the run, six of the failure modes.
    assert len(pictures) == 12
    ids = {attributes.get("id") for _, attributes in page.tags}
    for attributes in pictures:
        assert attributes["role"] == "img"
        named = (attributes["aria-labelledby"] or "").split()
        assert len(named) == 2
        assert set(named) <= ids


def test_figures_take_their_colours_from_the_page(html: str) -> None:
    svg = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == set()
    assert set(re.findall(r"var\((--[a-z]+)\)", html)) <= set(re.findall(r"(--[a-z]+):", html))


def test_it_says_what_was_guaranteed_what_it_cost_and_what_it_gained(page: Page) -> None:
    words = page.words
    for part in (
        "What it gained",
        "What it cost",
        "What was guaranteed",
        "What it does not guarantee",
        "What was taken as public",
        "The number of training records.",
        "Two data sets are neighbours when one has one record that the other lacks",
        "at most a factor of 21",
        "1 in 1,000,000",
        "95.3 %",
        "raptor verify data/08_reporting/privacy_certificate.json",
        "privacy.epsilon",
        "training.batch_size",
        *LABELS,
    ):
        assert part in words, part
    assert "protects nobody" not in words


def test_it_says_which_epsilon_to_quote(page: Page) -> None:
    assert "epsilon 3.00 at delta 1e-6. This pair is the one to quote" in page.words
    searched = Page(render_report(sample_inputs(guarantee=sample_guarantee(search="One of ten runs."))))
    assert "the one to quote; other epsilons" not in searched.words


def test_a_seeded_run_says_that_it_protects_nobody() -> None:
    seeded = sample_guarantee(protects=False, generator="seeded:aes-256-ctr")
    assert "This run protects nobody" in Page(render_report(sample_inputs(guarantee=seeded))).words


def test_private_records_show_the_noise_and_claim_no_comparison() -> None:
    words = Page(render_report(sample_inputs(comparison=sample_comparison(public=False)))).words
    assert "with Gaussian noise" in words
    assert "of it noise" in words
    assert "points over the largest class" in words
    assert "Without privacy" not in words
    assert "All trained methods" not in words


def test_replace_one_is_explained_as_such() -> None:
    words = Page(render_report(sample_inputs(guarantee=sample_guarantee(adjacency="replace-one")))).words
    assert "exchanged for another" in words
    assert "your record was used and not another one" in words


def test_class_names_are_text_whatever_they_hold() -> None:
    names = ("<script>alert(1)</script>", "a $x^2$ \\frac", 'quote " id="x', "日本 & co")
    page = Page(render_report(sample_inputs(labels=names)))
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script>alert(1)</script>" in page.words
    assert "a $x^2$ \\frac" in page.words


def test_the_same_inputs_give_the_same_page(html: str) -> None:
    assert render_report(sample_inputs()) == html


def test_the_verdict_names_epsilon_accuracy_and_both_comparisons() -> None:
    sentence = verdict(sample_comparison(), 2.99991)
    assert sentence.startswith("At a proven epsilon of 3.00, the private model gets")
    assert "largest class" in sentence
    assert sentence.endswith("without privacy.")
    assert "without privacy" not in verdict(sample_comparison(public=False), 1.0)


def test_a_model_that_learnt_nothing_is_not_praised() -> None:
    assert "not measurably better" in verdict(sample_comparison(strength=0.0), 3.0)


def test_an_accuracy_that_is_lost_in_the_noise_is_shown_as_a_range() -> None:
    noisy = {"raptor": sample_tables(1.5, noise=120.0)}
    comparison = compare(noisy, ("largest_class",), False)
    assert re.search(r"gets between \d+ and \d+\s% of held-out records right", verdict(comparison, 2.0))
    _, accuracy, gain = big_numbers(comparison, sample_guarantee())
    assert re.fullmatch(r"\d+\N{EN DASH}\d+\s%", accuracy.number)
    assert gain.number == "unclear"


def test_three_figures_on_top() -> None:
    epsilon, accuracy, kept = big_numbers(sample_comparison(), sample_guarantee())
    assert epsilon.number == "3.00"
    assert epsilon.detail == "budget 3, delta 1e-6"
    assert "largest class" in accuracy.detail
    assert kept.number.endswith("%")
    assert kept.what == "of the gain over the largest class is kept"
    assert "points that training without privacy gains over always answering the largest class" in kept.detail
    private = big_numbers(sample_comparison(public=False), sample_guarantee())[2]
    assert private.number.startswith("+")
    assert private.what == "points over the largest class"


def test_inputs_have_no_field_for_private_values() -> None:
    fields = set(ReportInputs.__dataclass_fields__)
    assert fields == {
        "comparison",
        "labels",
        "guarantee",
        "routing",
        "routing_headline",
        "parameters",
        "certificate",
        "audit",
        "diagnosis",
        "version",
    }


def test_an_accuracy_that_is_lost_in_the_noise_is_said_to_be_lost() -> None:
    import numpy as np

    from raptor.reporting.tables import EvaluationTables

    lost = EvaluationTables(np.full((4, 4), -3.0), np.full((10, 3), -2.0), 30.0, 52.0)
    comparison = compare({"raptor": lost, "base_model": lost}, ("largest_class", "base_model"), False)
    page = Page(render_report(sample_inputs(comparison=comparison)))
    assert "is not measurable at this noise: the held-out set is too small" in page.words
    assert (
        f"a standard deviation of {comparison.total_noise:.1f} records on the number of held-out records"
        in page.words
    )
    assert "certificate stand" in page.words
    assert "What was guaranteed" in page.words
    assert not [tag for tag, given in page.tags if tag == "svg" and "figure-accuracy" in str(given)]
