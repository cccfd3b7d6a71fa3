"""Tables as Hugging Face data sets on disk, memory-mapped on load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raptor.datasets.atomic import AtomicDataset

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa


class ArrowDataset(AtomicDataset["datasets.Dataset | pa.Table", "datasets.Dataset"]):
    """A folder written by ``Dataset.save_to_disk``.

    Saves a ``datasets.Dataset`` or a ``pyarrow.Table``, loads a ``datasets.Dataset``. The library is imported
    on use: ``kedro_datasets.huggingface`` would bring transformers and torch into every run. Saving over the
    folder that the data were loaded from works, since the old files stay mapped until they are released.
    """

    def _read(self, path: Path) -> datasets.Dataset:
        from datasets import load_from_disk

        return load_from_disk(str(path))

    def _write(self, data: datasets.Dataset | pa.Table, path: Path) -> None:
        import datasets

        table = data if isinstance(data, datasets.Dataset) else datasets.Dataset(data)
        shown = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            table.save_to_disk(str(path))
        finally:
            if not shown:
                datasets.enable_progress_bars()

    def _exists(self) -> bool:
        return (self.filepath / "state.json").is_file()
