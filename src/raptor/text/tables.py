"""Typed tables: Parquet files, Arrow files and folders, and tables in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from raptor.text.columns import CHUNK, TEXTS, Batch, Columns, Layout
from raptor.text.files import readable, unchanged
from raptor.text.problems import RecordError

UNUSABLE_LABELS = "A label is a name or a whole number, one a record."


def read_parquet(path: Path, columns: Columns, encoding: str) -> Iterator[Batch]:
    """Records of a Parquet file, a row group at a time.

    Raises:
        RecordError: the file is no whole Parquet file, or a column is missing or of an unusable type.
    """
    import pyarrow.parquet as pq

    with unchanged(path), _sound(path, "Parquet"):
        file = pq.ParquetFile(path, memory_map=True)
        schema = file.schema_arrow
        layout = columns.resolve(schema.names, str(path))
        wanted = [schema.names[at] for at in layout.used().values()]
        batches = file.iter_batches(batch_size=CHUNK, columns=wanted)
        yield from table_batches(batches, schema, layout, str(path), encoding)


def check_parquet(path: Path, columns: Columns) -> None:
    """Refuse column names and types by the schema alone; raises as `read_parquet`."""
    import pyarrow.parquet as pq

    with readable(path), _sound(path, "Parquet"):
        _check_schema(pq.read_schema(path), columns, str(path))


def check_arrow(path: Path, columns: Columns) -> None:
    """Refuse column names and types by the schema alone; raises as `read_arrow`."""
    with readable(path), _sound(path, "Arrow"), pa.memory_map(str(path)) as source:
        try:
            schema = pa.ipc.open_file(source).schema
        except pa.ArrowInvalid:
            schema = pa.ipc.open_stream(source).schema
        _check_schema(schema, columns, str(path))


def _check_schema(schema: pa.Schema, columns: Columns, file: str) -> None:
    for role, at in columns.resolve(schema.names, file).used().items():
        _check_type(role, schema.field(at).type, file, schema.names[at])


def read_arrow(path: Path, columns: Columns, encoding: str) -> Iterator[Batch]:
    """Records of an Arrow IPC file or stream, memory-mapped.

    Raises:
        RecordError: as for `read_parquet`.
    """
    with unchanged(path), _sound(path, "Arrow"), pa.memory_map(str(path)) as source:
        try:
            file = pa.ipc.open_file(source)
            batches: Iterable[pa.RecordBatch] = (file.get_batch(n) for n in range(file.num_record_batches))
        except pa.ArrowInvalid:
            file = pa.ipc.open_stream(source)
            batches = file
        schema = file.schema
        layout = columns.resolve(schema.names, str(path))
        yield from table_batches(batches, schema, layout, str(path), encoding)


def saved_dataset_parts(folder: Path) -> list[tuple[str | None, list[Path]]]:
    """Arrow files of a folder that ``datasets.save_to_disk`` wrote: (split name or None, files in order).

    Raises:
        RecordError: a part is missing or was written by a version that is too old.
    """
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = _json(splits).get("splits", [])
        return [(str(name), _saved_files(folder / str(name))) for name in names]
    return [(None, _saved_files(folder))]


def is_saved_dataset(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _saved_files(folder: Path) -> list[Path]:
    state = _json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise RecordError(
            "the data set was saved with a separate order of its rows.",
            place=folder,
            advice="Load it with `datasets.load_from_disk` and save it again with version 2.5 or later.",
        )
    return [folder / entry["filename"] for entry in state["_data_files"]]


def _json(path: Path) -> dict[str, Any]:
    with readable(path):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise RecordError("the file is damaged.", place=path, advice="Save the data set again.")
    return value


@contextmanager
def _sound(path: Path, kind: str) -> Iterator[None]:
    """Turn a parser's complaints into one message without content of the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # For damaged content pyarrow raises an OSError without a number; others are the system's. Names of columns
        # that are no UTF-8 are damage, too.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise RecordError(
            f"it is not a whole {kind} file.",
            place=path,
            advice="It may be cut off: write or download it again.",
        ) from None


def class_names(schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """Names of integer classes that a file keeps beside its data.

    Known are the class labels of Hugging Face data sets, and a list under `label_names`.
    """
    metadata = schema.metadata or {}
    try:
        info = json.loads(metadata.get(b"huggingface", b"{}"))
        feature = info.get("info", {}).get("features", {}).get(column, {})
        names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
        names = names or json.loads(metadata.get(b"label_names", b"null"))
    except (ValueError, AttributeError):
        return None
    whole = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return tuple(names) if whole and len(set(names)) == len(names) else None


# From here on, a type of floating-point numbers leaves whole numbers out.
EXACT = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}


def table_batches(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    layout: Layout,
    file: str,
    encoding: str,
) -> Iterator[Batch]:
    """Records of Arrow batches; places are record numbers that count from 1."""
    roles = layout.used()
    names = {role: schema.names[at] for role, at in roles.items()}
    for role, name in names.items():
        _check_type(role, schema.field(roles[role]).type, file, name)
    label_names = class_names(schema, names["label"]) if "label" in names else None
    if label_names is not None and not pa.types.is_integer(schema.field(roles["label"]).type):
        label_names = None
    done = 0
    for large in batches:
        large.validate()
        for name in names.values():
            _require_sound(large.column(name))
        for start in range(0, len(large), CHUNK):
            part = large.slice(start, CHUNK)
            made = Batch(file, "record", list(range(done + 1, done + len(part) + 1)), class_names=label_names)
            for role, name in names.items():
                setattr(made, role, _values(part.column(name), made, role, name, encoding))
            if label_names is not None and made.label is not None:
                made.label = _named(made.label, label_names, made)
            done += len(part)
            yield made


def _require_sound(column: pa.Array) -> None:
    """Refuse lengths and offsets that point out of the data: a damaged Arrow file is mapped, not parsed.

    Bytes that are no UTF-8 are left for later, where the record is known.

    Raises:
        pa.ArrowInvalid: the column is damaged.
    """
    plain = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
    (column if plain is None else column.view(plain)).validate(full=True)


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def _check_type(role: str, kind: pa.DataType, file: str, name: str) -> None:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if role == "image" and pa.types.is_struct(inner) and {"bytes", "path"} & {field.name for field in inner}:
        # As Hugging Face data sets keep images.
        return
    textual = (
        pa.types.is_string(inner)
        or pa.types.is_large_string(inner)
        or pa.types.is_string_view(inner)
        or _is_bytes(inner)
        or pa.types.is_null(inner)
    )
    if textual:
        return
    numeric = pa.types.is_integer(inner) or pa.types.is_boolean(inner)
    numeric = numeric or pa.types.is_floating(inner) or pa.types.is_decimal(inner)
    if role == "image":
        raise RecordError(
            f"the column holds {inner}, not images.",
            place=file,
            column=name,
            advice="Images are bytes, or names of files.",
        )
    if role in TEXTS:
        raise RecordError(
            f"the column holds {inner}, not text.",
            place=file,
            column=name,
            advice="Choose the column with the text, or write it as strings.",
        )
    if not numeric and not isinstance(inner, pa.UuidType):
        advice = UNUSABLE_LABELS if role == "label" else "Use a column of strings or whole numbers."
        raise RecordError(f"the column holds {inner}.", place=file, column=name, advice=advice)


def _values(column: pa.Array, made: Batch, role: str, name: str, encoding: str) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if role == "image" and (_is_bytes(column.type) or pa.types.is_struct(column.type)):
        return list(column.to_pylist())
    if isinstance(column.type, pa.UuidType):
        return [None if value is None else str(value) for value in column.to_pylist()]
    if _is_bytes(column.type):
        return [_decode(value, made, row, name, encoding) for row, value in enumerate(column.to_pylist())]
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = [
            _decode(value, made, row, name, "utf-8") for row, value in enumerate(column.cast(pa.binary()))
        ]
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        exact = EXACT.get(column.type)
        return [_whole(value, made, row, name, exact) for row, value in enumerate(values)]
    if pa.types.is_boolean(column.type):
        return [None if value is None else str(value).lower() for value in values]
    return values


def _decode(value: Any, made: Batch, row: int, name: str, encoding: str) -> str | None:
    data = value.as_py() if isinstance(value, pa.Scalar) else value
    try:
        return None if data is None else str(data, encoding)
    except UnicodeDecodeError:
        raise RecordError(
            f"the bytes are not {encoding}.",
            place=made.place(row),
            column=name,
            advice="Give the encoding: ingestion.encoding (or --encoding).",
        ) from None


def _whole(
    value: float | Decimal | None, made: Batch, row: int, name: str, exact: int | None = None
) -> int | None:
    """Integers that became floating-point numbers because one was missing.

    Args:
        exact: from here on the column's type does not hold every whole number; None where it does.
    """
    if value is None or math.isnan(value):
        return None
    if not math.isfinite(value) or value != int(value):
        raise RecordError(
            "the value is not a whole number.",
            place=made.place(row),
            column=name,
            advice=UNUSABLE_LABELS,
            value=value,
        )
    if exact is not None and not -exact < value < exact:
        raise RecordError(
            "the number is too large for a column of floating-point numbers, where two numbers may have become one.",
            place=made.place(row),
            column=name,
            advice="Write the column as whole numbers or as strings, from where they still are exact.",
            value=value,
        )
    return int(value)


def _named(values: list[Any], names: tuple[str, ...], made: Batch) -> list[Any]:
    """Names for integer classes; -1 and None, for no label, stay."""
    known: dict[Any, Any] = {**dict(enumerate(names)), -1: -1, None: None}
    try:
        return [known[value] for value in values]
    except KeyError:
        row = next(row for row, value in enumerate(values) if value not in known)
        raise RecordError(
            f"the label is outside 0 to {len(names) - 1}, the classes that the file itself names.",
            place=made.place(row),
            advice="Correct the label, or write the file without its list of names.",
            value=values[row],
        ) from None


def in_memory(table: pa.Table, columns: Columns, name: str, encoding: str) -> Iterator[Batch]:
    """Records of a table that some other code made; `name` stands for a file in messages."""
    layout = columns.resolve(table.schema.names, name)
    return table_batches(table.to_batches(CHUNK), table.schema, layout, name, encoding)
