"""Numbered rows of a file or data set, streamed: JSONL, JSON arrays, TSV, CSV, Parquet and Hugging Face `datasets`.

A row is what its format gives, mostly a dict. Error messages name its number: that of the line, record or row. Text files
may be compressed with gzip or Zstandard. A file that is broken or cut off raises a ValueError instead of ending early.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

Rows = Iterator[tuple[int, object]]
_CHUNK = 1 << 16
_LONGEST = 1 << 24  # maximum bytes of a line, characters of a record: a broken quote must not read the whole file
_BATCH = 1024  # rows
_DECODE = json.JSONDecoder().raw_decode
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


def jsonl_rows(path: Path) -> Rows:
    """Stream the JSON value of each line that is not blank."""
    with _open_decompressed(path) as file:
        for number, line in enumerate(_lines(file, path), start=1):
            if line.strip():
                try:
                    row = json.loads(line.decode("utf-8-sig"))
                except json.JSONDecodeError as error:
                    raise ValueError(f"{path}:{number}: {error.msg} (column {error.colno})") from None
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}:{number}: {explain(error)}") from None
                yield number, row


def table_rows(path: Path, delimiter: str) -> Rows:
    """Stream rows as dicts by the header, numbered by their last line. Quotes are as in CSV, also in DPR's `psgs_w100.tsv`."""
    csv.field_size_limit(max(_LONGEST, csv.field_size_limit()))  # for the whole process; 131,072 characters by default
    with _open_decompressed(path) as file:
        lines = (line.decode("utf-8" if n else "utf-8-sig") for n, line in enumerate(_lines(file, path)))
        reader, ended = csv.reader(lines, delimiter=delimiter, strict=True), 0  # `ended`: last line of the previous row
        try:
            header = [name.strip().lower() for name in next(reader, [])]
            other = next((sign for sign in ";\t,|" if len(header) == 1 and sign in header[0]), None)
            if other:
                raise csv.Error(f"the columns are separated by {other!r}: separate them by {delimiter!r}")
            if twice := sorted({name for name in header if name and header.count(name) > 1}):
                raise csv.Error(f"two columns are called {twice[0]!r}")
            ended = reader.line_num
            for row in reader:
                if row and len(row) != len(header):
                    raise csv.Error(f"{len(row)} columns under a header of {len(header)}")
                ended = reader.line_num
                if row:
                    yield reader.line_num, dict(zip(header, row, strict=True))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{reader.line_num + 1}: {explain(error)}") from None
        except csv.Error as error:
            if str(error) == "unexpected end of data":
                raise ValueError(f'{path}:{ended + 1}: a quote (") opens in this row and never closes') from None
            quoted = f"; a quote that opens in line {ended + 1} reaches to here" * (reader.line_num > ended + 1)
            raise ValueError(f"{path}:{reader.line_num}: {error}{quoted}") from None


def iter_records(path: str | Path) -> Iterator[dict]:
    """Stream the objects of a JSON array, or objects one after another; the largest official file takes 3 GB as one list.
    A ValueError states how many objects came before the error."""
    count, buffer, at = 0, "", 0
    inside = None  # the array: None before its opening bracket, False after the closing one
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
            raise ValueError(f"{path}: after {count} records: {explain(error)}") from None


def explain(error: Exception) -> str:
    """Return the message of an error; for text that is not UTF-8, its probable encoding and how to convert it."""
    if not isinstance(error, UnicodeDecodeError):
        return str(error)
    if error.start == 0 and error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "this is UTF-16, not UTF-8: convert it (iconv -f UTF-16 -t UTF-8 FILE > NEW)"
    before = error.object[max(error.start - 10, 0) : error.start].decode("utf-8", "replace")
    return (
        f"not UTF-8 at byte 0x{error.object[error.start]:02x} after {before!r}, probably Latin-1 or Windows-1252: "
        "convert it (iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW)"
    )


def decode_next(file: TextIO, buffer: str, at: int) -> tuple[object, str, int]:
    """Decode the JSON value that begins at ``buffer[at]``; read more of the file if the buffer cuts it off. Returns the
    value, the buffer, and where in it the value ends. Raises ValueError or RecursionError if the value is broken."""
    while True:
        try:
            value, end = _DECODE(buffer, at)
            return value, buffer, end
        except (ValueError, RecursionError):
            # Broken, or only cut off by the end of the chunk: try again with more text.
            length = len(buffer) - at
            more = file.read(max(_CHUNK, length)) if length < _LONGEST else ""
            if not more:
                raise
            buffer, at = buffer[at:] + more, 0


tsv_rows, csv_rows = partial(table_rows, delimiter="\t"), partial(table_rows, delimiter=",")


def json_rows(path: Path) -> Rows:
    """The records of `iter_records`, numbered."""
    return enumerate(iter_records(path), start=1)


def parquet_rows(path: Path, columns_of: Callable[[list[str]], Iterable[str]]) -> Rows:
    """Stream rows with only the columns that `columns_of` picks from the names of all."""
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
    """Stream rows of a `datasets.Dataset` or `IterableDataset` as `parquet_rows` does; `source` names it in errors."""
    import pyarrow as pa

    try:
        tables = dataset.with_format("arrow").iter(batch_size=_BATCH)
        chosen = (table.select(list(columns_of(table.column_names))) for table in tables)
        yield from enumerate((row for table in chosen for row in table.to_pylist()), start=1)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ValueError(f"{source}: {error}") from None


@contextmanager
def _open_decompressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file as bytes, decompressed according to its name; raises ValueError if the compressed data is broken."""
    if path.suffix.lower() not in _COMPRESSIONS:
        with open(path, "rb") as file:
            yield file
        return
    import pyarrow as pa

    if not path.stat().st_size:
        raise ValueError(f"{path}: the file is empty, which no compressed file is")
    try:
        with pa.input_stream(path, compression=_COMPRESSIONS[path.suffix.lower()]) as stream:
            yield io.BufferedReader(stream, _CHUNK)
    except OSError as error:
        raise ValueError(f"{path}: damaged or cut off: {error}") from None


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST and line[-1:] != b"\n":
            raise ValueError(f"{path}: a line is longer than {_LONGEST:,} bytes; a JSON array belongs in a .json file")
        yield line
