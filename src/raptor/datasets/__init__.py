"""The catalog's dataset types. They import pandas, torch and the like only when data are loaded or saved."""

from raptor.datasets.arrow import ArrowDataset
from raptor.datasets.directories import (
    CheckpointFolder,
    PretrainedDirectory,
    ReleaseJournalStore,
    ResultsFolder,
)
from raptor.datasets.documents import (
    FigureDataset,
    JSONDataset,
    JSONLinesDataset,
    OptionalJSONDataset,
    ParquetDataset,
    TextDataset,
)
from raptor.datasets.keys import PrivateKey

__all__ = [
    "ArrowDataset",
    "CheckpointFolder",
    "FigureDataset",
    "JSONDataset",
    "JSONLinesDataset",
    "OptionalJSONDataset",
    "ParquetDataset",
    "PretrainedDirectory",
    "PrivateKey",
    "ReleaseJournalStore",
    "ResultsFolder",
    "TextDataset",
]
