"""`qwenmtp table`: interleaved row files of a model's n-gram table, made and checked. Layout: csrc/ple/row_file.h."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qwenmtp import _core
from qwenmtp.errors import ModelFormatError
from qwenmtp.weights import ModelFiles, open_model_files

ROW_FILE = "ngram-table.rows"
STEP_ROWS = 1 << 18

Progress = Callable[[int, int], None]

# What `qwenmtp bench ple` measures, and measures it with.
Coding, RowFormat, RowType = _core.Coding, _core.RowFormat, _core.RowType
PlePlane, PleShard, PleTableSpec, PleTable = _core.PlePlane, _core.PleShard, _core.PleTableSpec, _core.PleTable
PleStager, ngram_rows, bare_reads = _core.PleStager, _core.ngram_rows, _core.bare_reads


@dataclass(frozen=True)
class TableReport:
    """What was written or checked.

    Attributes:
        path: The row file.
        rows: Rows of the table, all of them copied or compared.
        n_bytes: Bytes of the row file.
        first_difference: First row that differs from the model's table, or None.
    """

    path: str
    rows: int
    n_bytes: int
    first_difference: int | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return asdict(self)


def row_file_of(model: str | Path) -> Path:
    """Where `interleave` puts a model's row file by default."""
    return Path(model) / ROW_FILE


def interleave(model: str | Path, out: str | Path | None = None, progress: Progress | None = None) -> TableReport:
    """Write the row file of a model's n-gram table; it appears whole or not at all.

    Args:
        model: The model folder.
        out: The file; None puts it into the model folder.
        progress: Called with rows done and rows in all.

    Raises:
        ModelFormatError: The folder is not a model, or has no n-gram table or several.
        IoError: The file cannot be written, or the disk is full.
        PleReadError: The table cannot be read.
    """
    source, path = _open(model), Path(out) if out is not None else row_file_of(model)
    write_row_file(source, path, progress)
    return TableReport(str(path), source.rows, path.stat().st_size)


def write_row_file(source: Any, path: Path, progress: Progress | None = None) -> None:
    """`interleave` for an open table."""
    writer = _core.PleRowFileWriter(source, str(path))
    while writer.rows_done < source.rows:
        _tell(progress, writer.rows_done, source.rows)
        writer.step(STEP_ROWS)
    writer.commit()
    _tell(progress, source.rows, source.rows)


def ngram_hash(
    base: int, vocab: int, seed: int = 1234, ngram_size: int = 3, heads_per_ngram: int = 8
) -> dict[str, list[int]]:
    """Constants of the first n-gram layer's hash: `multipliers`, and `sizes` and `offsets` by head."""
    sizes, offsets = _core.ngram_heads(base, (ngram_size - 1) * heads_per_ngram, 0)
    multipliers = _core.ngram_multipliers(seed, vocab, ngram_size, 0)
    return {"multipliers": multipliers, "sizes": sizes, "offsets": offsets}


def synthetic_ngram(n_rows: int, vocab: int, eos: int, heads: int = 16) -> Any:
    """The released model's hash over a table of `n_rows` rows: trigrams, `heads` heads of nearly equal size."""
    constants = ngram_hash(n_rows // heads - 2000, vocab, heads_per_ngram=heads // 2)
    return _core.NgramConfig(vocab=vocab, ngram_size=3, heads_per_ngram=heads // 2, eos=eos, **constants)


def verify(model: str | Path, row_file: str | Path | None = None, progress: Progress | None = None) -> TableReport:
    """Compare every row of a row file with the model's table, and every checksum.

    Args:
        model: The model folder.
        row_file: The file; None takes the one in the model folder.
        progress: Called with rows done and rows in all.

    Raises:
        ModelFormatError: As in `interleave`, or the row file is of another table.
        IoError: A file cannot be opened.
        PleReadError: A checksum is wrong, or a file cannot be read.
    """
    path = Path(row_file) if row_file is not None else row_file_of(model)
    source, rows = _open(model), _open(model, path)
    for first in range(0, source.rows, STEP_ROWS):
        _tell(progress, first, source.rows)
        row = _core.ple_first_difference(rows, source, first, min(STEP_ROWS, source.rows - first))
        if row >= 0:
            return TableReport(str(path), source.rows, path.stat().st_size, row)
    _tell(progress, source.rows, source.rows)
    return TableReport(str(path), source.rows, path.stat().st_size)


def _open(model: str | Path, row_file: Path | None = None) -> Any:
    """The model's one table, or its row file with checksums."""
    files: ModelFiles = open_model_files(model)
    tables = _core.ngram_tables(files.geometry, files.layout, files.files, files.tensors, files.quant)
    if len(tables) != 1:
        raise ModelFormatError(f"[table.open] {model} has {len(tables)} n-gram tables, expected one")
    spec = tables[0][1]
    if row_file is not None:
        spec = spec.with_row_file(str(row_file), checksums=True)
    return _core.PleTable.open(spec)


def _tell(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)
