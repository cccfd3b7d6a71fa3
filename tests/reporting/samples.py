"""Made-up released values, enough for every part of the report."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from raptor.reporting import style
from raptor.reporting.audit import NOT_RUN, AuditNote
from raptor.reporting.comparison import Comparison, compare
from raptor.reporting.diagnostics import read_diagnosis
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


SAMPLE_PROFILE = {
    "layers": [
        {"layer": 1, "counts": [50, 40, 60, 50]},
        {"layer": 3, "counts": [49, 51, 48, 52]},
        {"layer": 5, "counts": [90, 90, 10, 10]},
    ]
}


def sample_failure_modes(**changes: Any) -> dict[str, Any]:
    """Made-up diagnostics of four experts, as the evaluation stage writes them."""
    interference = {"mean": 0.7, "tenth": 0.4, "retained": 0.66, "hit": 0.9}
    role = {
        "median_norm": 0.8,
        "interference": interference,
        "ratios": np.linspace(0.3, 1.0, 21).tolist(),
    }
    values: dict[str, Any] = {
        "enabled": True,
        "model": "m",
        "layer": 3,
        "vote": "weight",
        "labels": "drawn",
        "caveats": [],
        "batch_size": 512,
        "optimizer": "adam",
        "noise_of_a_number": 0.02,
        "adam_epsilon": 1e-8,
        "quantiles": np.linspace(0, 1, 21).tolist(),
        "records": 1024,
        "roles": {"shared": role, "expert": {**role, "ratios": np.linspace(0.2, 0.9, 21).tolist()}},
        "mismatch": 0.2,
        "loads": [0.245, 0.255, 0.24, 0.26],
        "bounds": {"deficit": 5e-4, "lower": 5e-4, "chi2": 1e-3, "tight": 1.1e-3, "upper": 2e-3},
        "empty": [1e-30] * 4,
        "empty_drawn": [0.0] * 4,
        "errors": {
            "bias": [1e-4, 1e-4, 4e-4, 4e-4],
            "sampling": [7e-3, 7.2e-3, 7e-3, 7.3e-3],
            "noise": [2.5] * 4,
        },
        "check": {"mean": 1.2, "variance": 0.02, "repetitions": 2000},
        "signal": {
            "measured": [0.05, 0.052, 0.049, 0.053],
            "aligned": [0.01, 0.0, 0.02, 0.01],
            "ceiling": [0.6, 0.62, 0.59, 0.63],
            "slope": 0.52,
        },
        "numbers": 40_000.0,
        "drift": {
            "norm": 9.0,
            "median": 0.7,
            "most": 2.0,
            "moved": 0.08,
            "missed": 0.01,
            "chi2_before": 1e-3,
            "chi2_after": 2e-3,
            "stability": {
                "drifts": [0.009, 0.09, 0.9, 9.0],
                "unsure": [0.02, 0.2, 0.9, 1.0],
                "moved": [0.0, 0.02, 0.2, 0.8],
            },
        },
    }
    return {**values, **changes}


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
        "diagnosis": read_diagnosis(sample_failure_modes(), SAMPLE_PROFILE),
        "version": "1.2.3",
    }
    return ReportInputs(**{**values, **changes})
