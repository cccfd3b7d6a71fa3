"""Names of the methods that are compared, as they stand in `evaluation_metrics` and in the parameters."""

from __future__ import annotations

RAPTOR = "raptor"
NONPRIVATE = "nonprivate"
MONOLITHIC = "monolithic"
BASE = "base_model"
LARGEST = "largest_class"

METHODS = (RAPTOR, NONPRIVATE, MONOLITHIC, BASE, LARGEST)

TITLES = {
    RAPTOR: "RAPTOR",
    NONPRIVATE: "Without privacy",
    MONOLITHIC: "Monolithic DP",
    BASE: "Base model",
    LARGEST: "Largest class",
}
NOTES = {
    RAPTOR: "private, role-aware",
    NONPRIVATE: "same steps, no guarantee",
    MONOLITHIC: "same budget, one clip",
    BASE: "untrained head",
    LARGEST: "a constant answer",
}
