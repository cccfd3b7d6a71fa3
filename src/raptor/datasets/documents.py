"""JSON, JSON lines, text and figures: small files that a person can open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raptor.datasets.atomic import AtomicDataset, write_text
from raptor.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def dumps(data: Any, *, indent: int | None = None) -> str:
    """JSON text without NaN or infinity, which are not JSON and break readers in other languages."""
    return json.dumps(data, allow_nan=False, ensure_ascii=False, indent=indent)


def loads(text: str) -> Any:
    """Parse JSON text; NaN and infinity are refused, as ``dumps`` never writes them."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    return json.loads(text, parse_constant=refuse)


class JSONDataset(AtomicDataset[Any, Any]):
    """One JSON value, indented.

    Raises:
        DataError: on save, when the value is not JSON (NaN, infinity, an unknown type); on load, when the
            file is not JSON.
    """

    def _read(self, path: Path) -> Any:
        try:
            return loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(
                f"{path} is not valid JSON ({error}). Delete it and run its stage again."
            ) from error

    def _write(self, data: Any, path: Path) -> None:
        try:
            text = dumps(data, indent=2)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self.filepath} cannot be written as JSON: {error}.") from error
        write_text(text + "\n", path)


class OptionalJSONDataset(JSONDataset):
    """A JSON value of a stage that need not have run: loads as None as long as it is not there."""

    is_optional = True

    def load(self) -> Any:
        return super().load() if self.filepath.exists() else None


class JSONLinesDataset(AtomicDataset[Iterable[Any], list[Any]]):
    """A list of JSON values, one a line.

    Raises:
        DataError: as for ``JSONDataset``, with the line number.
    """

    def _read(self, path: Path) -> list[Any]:
        rows = []
        # Only "\n" ends a line: str.splitlines would also cut at separators inside a JSON string.
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if line.strip():
                try:
                    rows.append(loads(line))
                except ValueError as error:
                    raise DataError(f"{path}, line {number} is not valid JSON ({error}).") from error
        return rows

    def _write(self, data: Iterable[Any], path: Path) -> None:
        lines = []
        for number, row in enumerate(data, start=1):
            try:
                lines.append(dumps(row) + "\n")
            except (TypeError, ValueError) as error:
                raise DataError(
                    f"{self.filepath}, line {number} cannot be written as JSON: {error}."
                ) from error
        write_text("".join(lines), path)


class TextDataset(AtomicDataset[str, str]):
    """A text file in UTF-8, such as the HTML report."""

    def _read(self, path: Path) -> str:
        return path.read_text(encoding="utf-8")

    def _write(self, data: str, path: Path) -> None:
        write_text(data, path)


class FigureDataset(AtomicDataset["Figure", bytes]):
    """A matplotlib figure, saved as PNG and closed; load returns the bytes of the picture."""

    def __init__(self, *, filepath: str, dpi: int = 150, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(filepath=filepath, metadata=metadata)
        self._dpi = dpi

    def _read(self, path: Path) -> bytes:
        return path.read_bytes()

    def _write(self, data: Figure, path: Path) -> None:
        from matplotlib import pyplot

        data.savefig(path, format="png", dpi=self._dpi, bbox_inches="tight")
        pyplot.close(data)


class ParquetDataset(AtomicDataset[Sequence[Mapping[str, Any]], list[dict[str, Any]]]):
    """Rows of like columns in a Parquet file: saves and loads a list of mappings."""

    def _read(self, path: Path) -> list[dict[str, Any]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{path} is not a Parquet file ({error}). Delete it and run its stage again."
            ) from error
        return rows

    def _write(self, data: Sequence[Mapping[str, Any]], path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([dict(row) for row in data]), path)
