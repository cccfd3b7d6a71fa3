"""Opening files of records: compression, encoding, line ends, and files that are not what they seem."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from raptor.errors import ParameterError
from raptor.text.problems import Findings, Place, RecordError

BLOCK = 1 << 20
SAMPLE = 1 << 16
TAR = (b"ustar", 257)
# So many zero bytes in a row stand in no text, not even in UTF-32.
ZEROS = b"\x00" * 8
BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
COMPRESSED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
ARROW_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
FOREIGN = (
    (b"\x28\xb5\x2f\xfd", "packed with zstandard", "Unpack it with `zstd -d`, or pack it with gzip."),
    (b"PK\x03\x04", "a zip archive or an Excel workbook", "Unpack it, or save the sheet as CSV in UTF-8."),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook", "Save the sheet as CSV in UTF-8."),
    (b"version https://git-lfs", "a Git LFS pointer, not the data", "Fetch the file with `git lfs pull`."),
    (b"%PDF", "a PDF document", "Export its table as CSV."),
    (b"SQLite format 3", "an SQLite database", "Export the table as CSV or Parquet."),
    (b"<!doctype html", "a web page", "Download the file itself, not the page about it."),
    (b"<?xml", "an XML document", "Export its records as CSV or JSON lines."),
    (b"{\\rtf", "a document of a text processor", "Save it as CSV in UTF-8."),
    (b"<html", "a web page", "Download the file itself, not the page about it."),
)


@dataclass(frozen=True)
class Stamp:
    """What changes when a file is written to."""

    size: int
    modified: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Refuse what was read if the file changed meanwhile, and say plainly why a file cannot be opened."""
    with readable(path):
        before = Stamp.of(path)
        yield
        after = Stamp.of(path)
    if before != after:
        raise RecordError(
            "the file changed while it was read.",
            place=path,
            advice="Wait until it is written, and run again.",
        )


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn the system's errors about a file into messages that say what to do."""
    try:
        yield
    except FileNotFoundError:
        raise RecordError("there is no such file.", place=path, advice="It may have been moved.") from None
    except PermissionError:
        raise RecordError(
            "no permission to read it.", place=path, advice="Ask its owner, or run `chmod u+r` on it."
        ) from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
        raise RecordError(
            "the compressed file is broken or cut off.", place=path, advice="Copy or download it again."
        ) from None
    except OSError as error:
        raise RecordError(
            f"it cannot be read ({error.strerror or type(error).__name__}).",
            place=path,
            advice="Check the disk, or copy the file elsewhere.",
        ) from None


def first_bytes(path: Path) -> bytes:
    """The start of a file's content, unpacked.

    Raises:
        RecordError: the file is empty, not a regular file, unreadable, or of a kind that holds no records.
    """
    with readable(path):
        if not path.is_file():
            raise RecordError("it is not a regular file.", place=path, advice="Copy its content to a file.")
        with open_bytes(path) as handle:
            sample = handle.read(SAMPLE)
    if not sample.strip(b"\xef\xbb\xbf \t\r\n\x00"):
        raise RecordError("the file is empty.", place=path, advice="Give a file with a header and records.")
    lowered = sample.lstrip().lower()
    for magic, what, advice in FOREIGN:
        if sample.startswith(magic) or lowered.startswith(magic.lower()):
            raise RecordError(f"the file is {what}.", place=path, advice=advice)
    if sample.startswith(TAR[0], TAR[1]):
        raise RecordError("the file is a tar archive.", place=path, advice="Unpack it with `tar -x`.")
    if any(sample.startswith(magic) for magic in COMPRESSED):
        raise RecordError("the file is packed twice.", place=path, advice="Unpack it once.")
    return sample


def arrow_kind(sample: bytes) -> str | None:
    """`parquet` or `arrow`, when the content says so."""
    return next((kind for magic, kind in ARROW_MAGIC.items() if sample.startswith(magic)), None)


def packed(path: Path) -> Callable[..., Any] | None:
    """What unpacks the file, by its first bytes; None when it is not packed."""
    with path.open("rb") as handle:
        start = handle.read(8)
    return next((opener for magic, opener in COMPRESSED.items() if start.startswith(magic)), None)


def open_bytes(path: Path) -> BinaryIO:
    """The file's content as bytes; gzip, bzip2 and xz are unpacked on the way."""
    opener = packed(path)
    if opener is not None:
        return cast(BinaryIO, opener(path, "rb"))
    return path.open("rb", buffering=BLOCK)


@dataclass(frozen=True)
class TextForm:
    """How a file's bytes become lines."""

    encoding: str
    newline: str


def text_form(path: Path, encoding: str, findings: Findings) -> TextForm:
    """Encoding and line end of a text file.

    A byte order mark decides the encoding. Only LF (or CRLF) ends a line, except in files that have no LF.

    Raises:
        ParameterError: there is no such encoding.
        RecordError: see `first_bytes`; or the file looks like UTF-16 without a mark.
    """
    sample = first_bytes(path)
    wanted = _codec(encoding)
    used = encoding
    marked = next((name for bom, name in BOMS if sample.startswith(bom)), None)
    if marked is not None:
        used = marked
        # utf-8 and utf-8-sig, utf-16 and utf-16-le agree; anything else deserves a word.
        if not wanted.startswith(marked[:5]):
            findings.remark(
                f"{path} begins with a byte order mark and is read as {marked.removesuffix('-sig')}."
            )
    elif ZEROS in sample:
        # As after a crash, or in a file whose place on the disk was taken before it was written.
        raise RecordError(
            "a block of zero bytes stands here.",
            place=Place(str(path), sample[: sample.index(ZEROS)].count(b"\n") + 1),
            advice="The file was not written to its end, or is damaged: write or copy it again.",
        )
    elif not wanted.startswith(("utf-16", "utf-32")) and sample.count(0) > len(sample) // 5:
        raise RecordError(
            f"every second byte is zero, so it is not {encoding} but probably UTF-16.",
            place=path,
            advice="Give its encoding: ingestion.encoding (or --encoding) utf-16-le or utf-16-be.",
        )
    elif not wanted.startswith("utf") and _is_multibyte_utf8(sample):
        findings.remark(
            f"{path} is read as {encoding}, but its bytes are also valid UTF-8: look for wrong letters in the texts."
        )
    start = sample.decode(used, "ignore")
    return TextForm(used, "\r" if "\n" not in start and "\r" in start else "\n")


def _codec(encoding: str) -> str:
    try:
        info = codecs.lookup(encoding)
        "".encode(encoding)
    except (LookupError, TypeError):
        raise ParameterError(
            f"ingestion.encoding is {encoding!r}, which is no text encoding that Python knows. "
            "Common ones are utf-8, cp1252, latin-1 and utf-16."
        ) from None
    return info.name


def _is_multibyte_utf8(sample: bytes) -> bool:
    if sample.isascii():
        return False
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(sample)
    except UnicodeDecodeError:
        return False
    return True


@contextmanager
def text_lines(path: Path, form: TextForm) -> Iterator[Iterator[str]]:
    """The file's lines with their ends.

    Raises:
        RecordError: bytes that the encoding does not know, with the line.
    """
    with open_bytes(path) as raw:
        handle = io.TextIOWrapper(raw, encoding=form.encoding, errors="strict", newline=form.newline)
        yield _decoded(handle, path, form)


def text_blocks(path: Path, form: TextForm) -> Iterator[str]:
    """The file's text in blocks of about a mebibyte.

    Raises:
        RecordError: as `text_lines`.
    """
    with open_bytes(path) as raw:
        handle = io.TextIOWrapper(raw, encoding=form.encoding, errors="strict", newline="\n")
        yield from _decoded(iter(lambda: handle.read(BLOCK), ""), path, form)


def _decoded(parts: Iterator[str], path: Path, form: TextForm) -> Iterator[str]:
    try:
        yield from parts
    except UnicodeError:
        raise _bad_bytes(path, form) from None


def _bad_bytes(path: Path, form: TextForm) -> RecordError:
    """Find the line of the first byte that the encoding does not know; the reader only knows its block."""
    name = form.encoding.removesuffix("-sig")
    advice = (
        "Say which encoding the file has: ingestion.encoding (or --encoding), "
        "such as cp1252 for files of Windows programs."
    )
    decoder = codecs.getincrementaldecoder(form.encoding)("strict")
    line = 1
    with open_bytes(path) as raw:
        while block := raw.read(BLOCK):
            state = decoder.getstate()
            try:
                line += decoder.decode(block).count(form.newline)
            except UnicodeDecodeError as error:
                # `error.object` is what the decoder had kept of earlier blocks, then this one.
                decoder.setstate(state)
                sound = error.object[len(state[0]) : error.start]
                line += decoder.decode(sound).count(form.newline)
                value = " ".join(f"0x{byte:02x}" for byte in error.object[error.start : error.end][:4])
                place = Place(str(path), line)
                return RecordError(f"the bytes are not {name}.", place=place, advice=advice, value=value)
            except UnicodeError:
                break
    return RecordError(f"the bytes are not {name}.", place=Place(str(path), line), advice=advice)
