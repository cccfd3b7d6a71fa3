"""Made-up released values, enough for every part of the report."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from raptor.reporting import style
from raptor.reporting.audit import NOT_RUN, AuditNote
from raptor.reporting.comparison import Comparison, compare
from raptor.reporting.guarantee import Guarantee, StreamFacts
from raptor.reporting.report import ReportInputs
from raptor.reporting.tables import EvaluationTables, tables_from_probabilities

LABELS = ("torch", "transformers", "sympy", "pandas")


def sample_tables(strength: float, noise: float = 0.0, classes: int = len(LABELS)) -> EvaluationTables:
    """Answers of a model that is better the larger `strength` is, with Gaussian noise of that deviation."""
    generator = np.random.default_rng(7)
    weights = np.linspace(2.0, 1.0, classes)
    labels = generator.choice(classes, size=2000, p=weights / weights.sum())
    logits = generator.normal(size=(2000, classes)) + strength * np.eye(classes)[labels]
    exponent = np.exp(logits)
    exact = tables_from_probabilities(exponent / exponent.sum(axis=1, keepdims=True), labels, bins=10)
    if noise == 0:
        return exact
    return EvaluationTables(
        exact.confusion + generator.normal(scale=noise, size=exact.confusion.shape),
        exact.reliability + generator.normal(scale=noise * 3**0.5, size=exact.reliability.shape),
        noise,
        noise * 3**0.5,
    )


def sample_comparison(public: bool = True, strength: float = 1.5) -> Comparison:
    noise = 0.0 if public else 8.0
    tables = {"raptor": sample_tables(strength, noise), "base_model": sample_tables(0.0, noise)}
    if public:
        tables |= {"nonprivate": sample_tables(2.2), "monolithic": sample_tables(1.0)}
    return compare(tables, ("largest_class",), public)


def sample_guarantee(**changes: Any) -> Guarantee:
    values: dict[str, Any] = {
        "epsilon": 2.99991,
        "target": 3.0,
        "split_sum": 4.01,
        "delta": 1e-6,
        "adjacency": "add-remove",
        "unit": "record",
        "streams": (
            StreamFacts("shared", 0.0128, 1.1234, 60, 1.0, 512.0, 1, 1.93),
            StreamFacts("expert", 0.0128, 1.1234, 60, 1.0, 64.0, 8, 1.93),
        ),
        "curve": ((0, 0.0), (12, 1.1), (60, 2.2), (120, 2.99991)),
        "accountant": "dp-accounting PLD",
        "generator": "secure:aes-256-ctr/os-entropy",
        "protects": True,
        "complete": True,
        "population": 40_000,
        "taken_as_public": ("The number of training records.", "The names of the classes."),
    }
    return Guarantee(**{**values, **changes})


def sample_routing() -> Figure:
    with style.drawing(5, 3) as figure:
        axes = figure.subplots()
        axes.bar([1, 3, 5], [0.94, 0.97, 0.95], color=style.ACCENT)
    return figure


def sample_inputs(**changes: Any) -> ReportInputs:
    values: dict[str, Any] = {
        "comparison": sample_comparison(),
        "labels": LABELS,
        "guarantee": sample_guarantee(),
        "routing": sample_routing(),
        "routing_headline": "Layer 3 is the most even",
        "parameters": {"privacy": {"epsilon": 3.0, "delta": 1e-6}, "training": {"batch_size": 512}},
        "certificate": "data/08_reporting/privacy_certificate.json",
        "audit": AuditNote("not run", NOT_RUN),
        "version": "1.2.3",
    }
    return ReportInputs(**{**values, **changes})
