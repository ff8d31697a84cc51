"""From a file or data set to numbered rows, streamed: JSONL, JSON arrays, TSV, CSV, Parquet and Hugging Face `datasets`.

A row is what its format gives, mostly a dict; its number is the line, record or row that an error message names.
Text files may be compressed with gzip or Zstandard. Whatever is broken or cut off is a ValueError, never a short read.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

Rows = Iterator[tuple[int, object]]
_CHUNK = 1 << 16
_LONGEST = 1 << 24  # bytes of a line, characters of a record: one broken quote must not read in the whole file
_BATCH = 1024  # rows
_DECODE = json.JSONDecoder().raw_decode


def jsonl_rows(path: Path) -> Rows:
    """The JSON value of each line that is not blank."""
    with _open_decompressed(path) as file:
        for number, line in enumerate(_lines(file, path), start=1):
            if line.strip():
                try:
                    row = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}:{number}: {error}") from None
                yield number, row


def count_lines(path: Path) -> int:
    """Line feeds of a file, counted at the speed of the disk."""
    with open(path, "rb", buffering=0) as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 22), b""))


def tsv_rows(path: Path) -> Rows:
    """Rows as dicts by the header, with CSV's quotes, as in DPR's `psgs_w100.tsv`; numbered by their last line."""
    return _table_rows(path, "\t")


def csv_rows(path: Path) -> Rows:
    """Rows as dicts by the header, numbered by their last line."""
    return _table_rows(path, ",")


def _table_rows(path: Path, delimiter: str) -> Rows:
    csv.field_size_limit(max(_LONGEST, csv.field_size_limit()))  # of the process; 131,072 characters by default
    with _open_decompressed(path) as file:
        lines = (line.decode("utf-8" if n else "utf-8-sig") for n, line in enumerate(_lines(file, path)))
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            header = [name.strip().lower() for name in next(reader, [])]
            if twice := sorted({name for name in header if name and header.count(name) > 1}):
                raise csv.Error(f"two columns are called {twice[0]!r}")
            for row in filter(None, reader):
                if len(row) != len(header):
                    raise csv.Error(f"{len(row)} columns under a header of {len(header)}")
                yield reader.line_num, dict(zip(header, row, strict=True))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{reader.line_num + 1}: {error}") from None
        except csv.Error as error:
            raise ValueError(f"{path}:{reader.line_num}: {error}") from None


def iter_records(path: str | Path) -> Iterator[dict]:
    """Stream the objects of a JSON array, or of objects in a row; the largest official file takes 3 GB as one list.

    Raises:
        ValueError: the file breaks off or holds anything else, saying how many objects were read before.
    """
    count, buffer, at = 0, "", 0
    inside = None  # of an array; None where no bracket has come, False after the closing one
    skip = re.compile(r"[ \t\r\n,]*").match
    with _open_decompressed(Path(path)) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig") as file:
        try:
            while True:
                separators = skip(buffer, at)
                assert separators, "the pattern matches nothing too"
                at = separators.end()
                if at == len(buffer):
                    buffer, at = file.read(_CHUNK), 0
                    if not buffer:
                        break
                elif buffer[at] == "[" and inside is None and not count:
                    inside, at = True, at + 1
                elif buffer[at] == "]" and inside:
                    inside, at = False, at + 1
                elif buffer[at] != "{" or inside is False:
                    raise ValueError(f"record {count + 1} is not an object: {buffer[at : at + 20]!r}")
                else:
                    record, buffer, at = decode_next(file, buffer, at)
                    assert isinstance(record, dict), "what begins with a brace"
                    count += 1
                    yield record
            if inside:
                raise ValueError("the file is cut off: its array is not closed")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: after {count} records: {error}") from None


def decode_next(file: TextIO, buffer: str, at: int) -> tuple[object, str, int]:
    """The JSON value that begins at ``buffer[at]``, the buffer with what had to be read of the file, and where in it
    the value ends. Raises ValueError or RecursionError where it is broken, and not only cut off."""
    while True:
        try:
            value, end = _DECODE(buffer, at)
            return value, buffer, end
        except (ValueError, RecursionError):
            # Broken, or only cut off by the end of the chunk: more text tells.
            length = len(buffer) - at
            more = file.read(max(_CHUNK, length)) if length < _LONGEST else ""
            if not more:
                raise
            buffer, at = buffer[at:] + more, 0


def json_rows(path: Path) -> Rows:
    """The records of `iter_records`, numbered."""
    return enumerate(iter_records(path), start=1)


def parquet_rows(path: Path, columns_of: Callable[[list[str]], Iterable[str]]) -> Rows:
    """Rows with only those columns that `columns_of` picks from the names of all."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        # By default the columns of a whole row group are read at once, and that may be the whole file.
        with ParquetFile(path, buffer_size=_CHUNK, pre_buffer=False) as file:
            columns = list(columns_of(file.schema_arrow.names))
            batches = file.iter_batches(_BATCH, columns=columns)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def dataset_rows(dataset, columns_of: Callable[[list[str]], Iterable[str]], source: str) -> Rows:
    """The same of a `datasets.Dataset` or `IterableDataset`; `source` names it in errors."""
    import pyarrow as pa

    try:
        tables = dataset.with_format("arrow").iter(batch_size=_BATCH)
        chosen = (table.select(list(columns_of(table.column_names))) for table in tables)
        yield from enumerate((row for table in chosen for row in table.to_pylist()), start=1)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ValueError(f"{source}: {error}") from None


@contextmanager
def _open_decompressed(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed where its name says so; ValueError where the compressed data is broken."""
    openers: dict[str, Callable[[Path, str], Any]] = {".gz": gzip.open, ".zst": _open_zstd}
    opener = openers.get(path.suffix.lower(), open)
    if opener is not open and not path.stat().st_size:
        raise ValueError(f"{path}: the file is empty, which no compressed file is")
    with opener(path, "rb") as file:
        try:
            yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: damaged or cut off: {error}") from None


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST and line[-1:] != b"\n":
            raise ValueError(f"{path}: a line is longer than {_LONGEST:,} bytes; a JSON array belongs in a .json file")
        yield line


def _open_zstd(path: Path, mode: str) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise ValueError(f"{path}: to read .zst files, pip install zstandard") from None
    return io.BufferedReader(_Chunks(_zstd_chunks(path, mode, zstandard)), _CHUNK)


def _zstd_chunks(path: Path, mode: str, zstandard) -> Iterator[bytes]:
    """Decompressed frame by frame, because the library's own reader takes a file that breaks off for one that ends."""
    with open(path, mode) as file:
        frame = zstandard.ZstdDecompressor().decompressobj()
        while chunk := file.read(_CHUNK):
            while chunk:
                if frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                try:
                    yield frame.decompress(chunk)
                except zstandard.ZstdError as error:
                    raise EOFError(error) from None
                chunk = frame.unused_data
        if not frame.eof:
            raise EOFError("the last frame has no end")


class _Chunks(io.RawIOBase):
    """An iterator of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]):
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target) -> int:
        while not self._rest:
            if (chunk := next(self._chunks, None)) is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(target), len(self._rest))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
