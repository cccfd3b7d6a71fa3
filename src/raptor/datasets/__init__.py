"""The catalog's dataset types. They import pandas, torch and the like only when data are loaded or saved."""

from raptor.datasets.arrow import ArrowDataset
from raptor.datasets.directories import PretrainedDirectory, ReleaseJournalStore
from raptor.datasets.documents import (
    FigureDataset,
    JSONDataset,
    JSONLinesDataset,
    OptionalJSONDataset,
    TextDataset,
)

__all__ = [
    "ArrowDataset",
    "FigureDataset",
    "JSONDataset",
    "JSONLinesDataset",
    "OptionalJSONDataset",
    "PretrainedDirectory",
    "ReleaseJournalStore",
    "TextDataset",
]
