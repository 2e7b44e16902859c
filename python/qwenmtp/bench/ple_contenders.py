"""Ways to gather n-gram rows, measured one to a process: `python ple_contenders.py NAME FOLDER` prints JSON.

FOLDER is what `qwenmtp.bench.ple` makes. The script needs NumPy alone until a contender imports what it measures, so
that MTPLX runs in an environment of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DIM, GROUP, ROW_BYTES = 160, 32, (80, 10, 10)
VOCAB, EOS, HEADS = 248_320, 248_044, 16
CHUNK = 2048
WINDOWS = (1, 2, 4)  # tokens: 16, 32 and 64 rows
PLANAR, ROWS, WORK = "ngram-table.safetensors", "ngram-table.rows", "work.npz"
PAST = np.array([EOS, EOS])
CAN_FORGET = hasattr(os, "posix_fadvise")


def planes_of(path: Path) -> tuple[int, list[int]]:
    """Rows, and the offsets of weight, scales and biases."""
    with path.open("rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
    tensors = [header[f"ngram.{name}"] for name in ("weight", "scales", "biases")]
    return tensors[0]["shape"][0], [8 + n + t["data_offsets"][0] for t in tensors]


def planar_spec(path: Path, row_file: str = "") -> Any:
    """The table as the core opens it."""
    from qwenmtp import table

    n_rows, offsets = planes_of(path)
    shard = table.PleShard(n_rows, [table.PlePlane(str(path), o) for o in offsets])
    row_format = table.RowFormat(dim=DIM, coding=table.Coding.affine, bits=4, group_size=GROUP)
    return table.PleTableSpec(row_format, [shard], row_file=row_file)


class Contender:
    """One way to gather rows. `gather` returns when the rows are in memory; `prepare` is not timed."""

    def __init__(self, folder: Path, form: str):
        self.planar, self.rows, self.form = folder / PLANAR, folder / ROWS, form
        self.n_rows, self.offsets = planes_of(self.planar)

    def forget(self) -> None:
        """Nothing of the table stays in memory."""
        for path in (self.planar, self.rows):
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def forget_own(self) -> None:
        """Only the page cache keeps the table."""

    def prepare(self, ids: Any, rows: Any) -> Any:
        """What `gather` takes for token ids and their rows, [tokens * 16]."""
        return rows

    def gather(self, prepared: Any) -> None:
        """Brings one span of rows into memory."""
        raise NotImplementedError


class OurStager(Contender):
    """This package, with its own cache: ids in, bf16 values out."""

    def __init__(self, folder: Path, form: str, n_threads: int):
        super().__init__(folder, form)
        from qwenmtp import table

        spec = planar_spec(self.planar, str(self.rows) if form == "interleaved" else "")
        self.stager = table.PleStager(table.synthetic_ngram(self.n_rows, VOCAB, EOS), spec, n_threads=n_threads)
        self.type = table.RowType.bfloat16

    def forget(self) -> None:
        self.stager.cancel()
        self.stager.clear_hot()
        super().forget()

    def forget_own(self) -> None:
        self.stager.clear_hot()

    def prepare(self, ids: Any, rows: Any) -> Any:
        return ids

    def gather(self, prepared: Any) -> None:
        self.stager.embed(prepared, PAST, self.type)

    def stall(self) -> float:
        """Seconds that lookups have waited for rows."""
        stats = self.stager.stats()
        return 1e-9 * float(stats["windows"]["stall_ns"] + stats["chunks"]["stall_ns"])

    def stall_of(self, prepared: Any) -> float:
        """The part of one gather that waits for rows."""
        before = self.stall()
        self.gather(prepared)
        return self.stall() - before


class BareReads(Contender):
    """Sorted distinct rows read into nothing; no decoding. What the machine can do."""

    def __init__(self, folder: Path, form: str, n_threads: int):
        super().__init__(folder, form)
        from qwenmtp import table

        self.read, self.n_threads = table.bare_reads, n_threads

    def prepare(self, ids: Any, rows: Any) -> Any:
        rows = np.unique(rows)
        if self.form == "interleaved":
            return [(self.rows, 4096 + rows // 40 * 4096 + rows % 40 * 100, 100)]
        return [(self.planar, o + rows * b, b) for o, b in zip(self.offsets, ROW_BYTES, strict=True)]

    def gather(self, prepared: Any) -> None:
        for path, offsets, n_bytes in prepared:
            self.read(str(path), offsets, n_bytes, self.n_threads)


class NumpyMap(Contender):
    """Fancy indexing of a memory map: packed rows, not decoded."""

    def __init__(self, folder: Path, form: str):
        super().__init__(folder, form)
        self.maps = self._map()

    def _map(self) -> list[Any]:
        parts = zip(self.offsets, ROW_BYTES, strict=True)
        return [np.memmap(self.planar, np.uint8, "r", o, (self.n_rows, b)) for o, b in parts]

    def forget(self) -> None:
        self.maps = []  # mapped pages cannot be dropped
        super().forget()
        self.maps = self._map()

    def gather(self, prepared: Any) -> None:
        for m in self.maps:
            m[prepared]


class Mtplx(Contender):
    """MTPLX's side-file gather with its own pool and cache, evaluated to bf16."""

    def __init__(self, folder: Path, form: str):
        super().__init__(folder, form)
        self.sidecar = self._attach()

    def _attach(self) -> Any:
        model = importlib.import_module("mtplx.models.qwen4_exp")
        table = model.NGramTable(self.n_rows, DIM, sidecar=True)
        table.attach_sidecar(self.planar)
        return table._sidecar

    def forget(self) -> None:
        self.sidecar = None
        super().forget()
        self.sidecar = self._attach()

    def forget_own(self) -> None:
        self.sidecar._hot.clear()

    def gather(self, prepared: Any) -> None:
        import mlx.core as mx

        mx.eval(self.sidecar.gather_np(prepared))


CONTENDERS: dict[str, Callable[[Path], Contender]] = {
    "stager row file x8": lambda d: OurStager(d, "interleaved", 8),
    "stager row file x2": lambda d: OurStager(d, "interleaved", 2),
    "stager planar x8": lambda d: OurStager(d, "planar", 8),
    "bare reads row file x1": lambda d: BareReads(d, "interleaved", 1),
    "bare reads row file x2": lambda d: BareReads(d, "interleaved", 2),
    "bare reads row file x8": lambda d: BareReads(d, "interleaved", 8),
    "bare reads planar x8": lambda d: BareReads(d, "planar", 8),
    "numpy map planar": lambda d: NumpyMap(d, "planar"),
    "MTPLX planar": lambda d: Mtplx(d, "planar"),
}


def timed(contender: Contender, spans: list[Any], before: Callable[[], None]) -> dict[str, Any]:
    """Seconds of each span, and of all threads' processor time a span."""
    seconds, cpu = [], 0.0
    for span in spans:
        before()
        used, start = sum(os.times()[:2]), time.perf_counter()
        contender.gather(span)
        seconds.append(time.perf_counter() - start)
        cpu += sum(os.times()[:2]) - used
    return {"seconds": seconds, "cpu_s": cpu / len(spans)}


def ahead(contender: OurStager, chunks: list[Any]) -> dict[str, Any]:
    """Waits for cold chunks that were requested 1.5 times their cold wait ago, and the share that this hides."""
    cold, hidden = [], []
    for ids in chunks:
        contender.forget()
        cold.append(contender.stall_of(ids))
    for ids in chunks:
        contender.forget()
        contender.stager.request(ids, PAST)
        time.sleep(1.5 * float(np.median(cold)))
        hidden.append(contender.stall_of(ids))
    return {"case": "chunk read ahead", "seconds": hidden, "hidden": 1 - sum(hidden) / sum(cold)}


def measure(name: str, folder: Path) -> list[dict[str, Any]]:
    """All cases of one contender, in this process."""
    contender, data, cases = CONTENDERS[name](folder), np.load(folder / WORK), []
    work = {
        kind: list(zip(data[f"{kind}.ids"], data[f"{kind}.rows"], strict=True))
        for kind in ("chunk", *(f"window{w}" for w in WINDOWS))
    }
    for kind, pairs in work.items():
        spans, n_rows, chunk = [contender.prepare(*pair) for pair in pairs], len(pairs[0][1]), kind == "chunk"
        if CAN_FORGET:
            contender.forget()
            cold = timed(contender, spans, contender.forget if chunk else lambda: None)
            cases.append({"case": f"{n_rows} rows cold", "rows": n_rows, **cold})
        for span in spans:
            contender.gather(span)
        cached = timed(contender, spans * (4 if chunk else 2), contender.forget_own if chunk else lambda: None)
        cases.append({"case": f"{n_rows} rows cached", "rows": n_rows, **cached})
    if isinstance(contender, OurStager):
        if CAN_FORGET:
            cases.append(ahead(contender, [ids for ids, _ in work["chunk"]]))
        windows = [ids for ids, _ in work["window1"]]
        for ids in windows:
            contender.gather(ids)
        cases.append({"case": "wait of a cached token", "seconds": [contender.stall_of(ids) for ids in windows]})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return [{"peak_bytes": peak, **case} for case in cases]


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])  # the package, not this folder
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
