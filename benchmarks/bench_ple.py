"""Gathering n-gram rows: this stager beside bare preads, a NumPy mapping and MTPLX, on one table in one run.

    python benchmarks/bench_ple.py --gb 4 --mtplx /path/to/venv/bin/python --out benchmarks/results/NAME.csv

Writes a table of random 4-bit rows (160 values, groups of 32; planar, as packs have it, and interleaved), runs every
contender in its own process on the same row ids, and deletes the table. Cold runs begin with POSIX_FADV_DONTNEED on the
table. Where --out is given, a row a result is appended, with commit, machine and command. Needs a developer build.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DIM, GROUP, ROW_BYTES = 160, 32, (80, 10, 10)
VOCAB, EOS, HEADS = 248_320, 248_044, 16
CHUNK = 2048
WINDOWS = (1, 2, 4)  # tokens: 16, 32 and 64 rows


def write_table(path: Path, n_rows: int) -> None:
    """A planar side file of random rows, in the layout of an MTPLX pack."""
    header: dict[str, Any] = {"__metadata__": {"ngram_bits": "4", "ngram_group_size": str(GROUP)}}
    at = 0
    for name, dtype, columns, width in (
        ("weight", "U32", 20, 80),
        ("scales", "BF16", 5, 10),
        ("biases", "BF16", 5, 10),
    ):
        header[f"ngram.{name}"] = {
            "dtype": dtype,
            "shape": [n_rows, columns],
            "data_offsets": [at, at + n_rows * width],
        }
        at += n_rows * width
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        left = n_rows * ROW_BYTES[0]
        while left:
            n = min(left, 1 << 24)
            f.write(rng.bytes(n))
            left -= n
        for _ in range(2):
            left = n_rows * 5
            while left:
                n = min(left, 1 << 22)
                values = rng.standard_normal(n, np.float32)
                f.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
                left -= n
        f.flush()
        os.fsync(f.fileno())


def planes_of(path: Path) -> tuple[int, list[int]]:
    """Rows, and the offsets of weight, scales and biases."""
    with path.open("rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
    tensors = [header[f"ngram.{name}"] for name in ("weight", "scales", "biases")]
    return tensors[0]["shape"][0], [8 + n + t["data_offsets"][0] for t in tensors]


def drop_cache(*paths: Path) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def ngram(n_rows: int) -> Any:
    from qwenmtp import _core

    sizes, offsets = _core.ngram_heads(n_rows // HEADS - 2000, HEADS, 0)
    multipliers = _core.ngram_multipliers(1234, VOCAB, 3, 0)
    return _core.NgramConfig(
        vocab=VOCAB, ngram_size=3, heads_per_ngram=8, multipliers=multipliers, sizes=sizes, offsets=offsets, eos=EOS
    )


PAST = np.array([EOS, EOS])


class Work:
    """The spans that every contender gathers: token ids and their rows, [tokens * 16]."""

    def __init__(self, path: Path):
        data = np.load(path)
        self.spans = {name: data[name] for name in data.files}

    def of(self, kind: str) -> list[tuple[np.ndarray, np.ndarray]]:
        ids, rows = self.spans[f"{kind}.ids"], self.spans[f"{kind}.rows"]
        return list(zip(ids, rows, strict=True))

    @staticmethod
    def write(path: Path, n_rows: int, n_chunks: int, n_windows: int) -> None:
        """Uniform ids: nearly every row of a chunk is distinct, the worst case for caches and merging."""
        from qwenmtp import _core

        config, rng, out = ngram(n_rows), np.random.default_rng(1), {}
        for kind, tokens, count in [("chunk", CHUNK, n_chunks), *((f"window{w}", w, n_windows) for w in WINDOWS)]:
            ids = rng.integers(0, VOCAB - 400, (count, tokens)).astype(np.int32)
            out[f"{kind}.ids"] = ids
            out[f"{kind}.rows"] = np.stack([_core.ngram_rows(config, i, PAST).reshape(-1) for i in ids])
        np.savez(path, **out)


class Contender:
    """One way to gather rows. `gather` returns when the rows are in memory; `prepare` is not timed."""

    def __init__(self, folder: Path, form: str):
        self.planar, self.rows = folder / "ngram-table.safetensors", folder / "ngram-table.rows"
        self.form = form
        self.n_rows, self.offsets = planes_of(self.planar)

    def forget(self) -> None:
        """Nothing of the table stays in memory."""
        drop_cache(self.planar, self.rows)

    def forget_own(self) -> None:
        """Only the page cache keeps the table."""

    def prepare(self, ids: np.ndarray, rows: np.ndarray) -> Any:
        return rows

    def gather(self, prepared: Any) -> None:
        raise NotImplementedError


class OurStager(Contender):
    def __init__(self, folder: Path, form: str, n_threads: int, hot_bytes: int = 256 << 20):
        super().__init__(folder, form)
        from qwenmtp import _core

        row_format = _core.RowFormat(dim=DIM, coding=_core.Coding.affine, bits=4, group_size=GROUP)
        shard = _core.PleShard(self.n_rows, [_core.PlePlane(str(self.planar), o) for o in self.offsets])
        row_file = str(self.rows) if form == "interleaved" else ""
        spec = _core.PleTableSpec(row_format, [shard], row_file=row_file)
        self.stager = _core.PleStager(ngram(self.n_rows), spec, n_threads=n_threads, hot_bytes=hot_bytes)
        self.type = _core.RowType.bfloat16

    def forget(self) -> None:
        self.stager.cancel()
        self.stager.clear_hot()
        super().forget()

    def forget_own(self) -> None:
        self.stager.clear_hot()

    def prepare(self, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return ids

    def gather(self, prepared: np.ndarray) -> None:
        self.stager.embed(prepared, PAST, self.type)

    def stall_ns(self) -> int:
        stats = self.stager.stats()
        return int(stats["windows"]["stall_ns"] + stats["chunks"]["stall_ns"])


class BarePread(Contender):
    """Sorted distinct rows read into nothing; no decoding. What the machine can do."""

    def __init__(self, folder: Path, form: str, n_threads: int):
        super().__init__(folder, form)
        self.n_threads = n_threads

    def prepare(self, ids: np.ndarray, rows: np.ndarray) -> list[tuple[Path, np.ndarray, int]]:
        rows = np.unique(rows)
        if self.form == "interleaved":
            return [(self.rows, 4096 + rows // 40 * 4096 + rows % 40 * 100, 100)]
        return [(self.planar, o + rows * b, b) for o, b in zip(self.offsets, ROW_BYTES, strict=True)]

    def gather(self, prepared: list[tuple[Path, np.ndarray, int]]) -> None:
        import _qwenmtp_testing

        for path, offsets, n_bytes in prepared:
            _qwenmtp_testing.bare_preads(str(path), offsets, n_bytes, self.n_threads)


class NumpyMap(Contender):
    """Fancy indexing of a memory map: packed rows, not decoded."""

    def __init__(self, folder: Path, form: str):
        super().__init__(folder, form)
        self.maps = self._map()

    def _map(self) -> list[np.ndarray]:
        parts = zip(self.offsets, ROW_BYTES, strict=True)
        return [np.memmap(self.planar, np.uint8, "r", o, (self.n_rows, b)) for o, b in parts]

    def forget(self) -> None:
        self.maps = []  # mapped pages cannot be dropped
        super().forget()
        self.maps = self._map()

    def gather(self, prepared: np.ndarray) -> None:
        for m in self.maps:
            m[prepared]


class Mtplx(Contender):
    """MTPLX's side-file gather with its own pool and cache, evaluated to bf16."""

    def __init__(self, folder: Path, form: str):
        super().__init__(folder, form)
        os.environ["MTPLX_NGRAM_PREWARM"] = "off"
        self.sidecar = self._attach()

    def _attach(self) -> Any:
        from mtplx.models.qwen4_exp import NGramTable

        table = NGramTable(self.n_rows, DIM, sidecar=True)
        table.attach_sidecar(self.planar)
        return table._sidecar

    def forget(self) -> None:
        self.sidecar = None
        super().forget()
        self.sidecar = self._attach()

    def forget_own(self) -> None:
        self.sidecar._hot.clear()

    def gather(self, prepared: np.ndarray) -> None:
        import mlx.core as mx

        mx.eval(self.sidecar.gather_np(prepared))


CONTENDERS: dict[str, Callable[[Path], Contender]] = {
    "stager interleaved x8": lambda d: OurStager(d, "interleaved", 8),
    "stager interleaved x2": lambda d: OurStager(d, "interleaved", 2),
    "stager planar x8": lambda d: OurStager(d, "planar", 8),
    "pread interleaved x1": lambda d: BarePread(d, "interleaved", 1),
    "pread interleaved x2": lambda d: BarePread(d, "interleaved", 2),
    "pread interleaved x8": lambda d: BarePread(d, "interleaved", 8),
    "pread planar x8": lambda d: BarePread(d, "planar", 8),
    "numpy map planar": lambda d: NumpyMap(d, "planar"),
    "MTPLX planar": lambda d: Mtplx(d, "planar"),
}


def timed(contender: Contender, spans: list[Any], before: Callable[[], None]) -> dict[str, float]:
    """Seconds a span, and the processor time of all threads."""
    seconds, cpu = [], 0.0
    for span in spans:
        before()
        used, start = sum(os.times()[:2]), time.perf_counter()
        contender.gather(span)
        seconds.append(time.perf_counter() - start)
        cpu += sum(os.times()[:2]) - used
    p50, p99 = np.percentile(seconds, [50, 99])
    return {"p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99, "cpu_ms": 1e3 * cpu / len(spans)}


def measure(name: str, folder: Path) -> list[dict[str, Any]]:
    """All results of one contender, in this process."""
    contender, work, results = CONTENDERS[name](folder), Work(folder / "work.npz"), []
    for kind in ("chunk", *(f"window{w}" for w in WINDOWS)):
        spans = [contender.prepare(ids, rows) for ids, rows in work.of(kind)]
        n_rows = len(work.of(kind)[0][1])
        chunk = kind == "chunk"
        contender.forget()
        cold = timed(contender, spans, contender.forget if chunk else lambda: None)
        results.append({"case": f"{n_rows} rows cold", "rows": n_rows, **cold})
        for span in spans:
            contender.gather(span)
        cached = timed(contender, spans * (4 if chunk else 2), contender.forget_own if chunk else lambda: None)
        results.append({"case": f"{n_rows} rows cached", "rows": n_rows, **cached})
    if isinstance(contender, OurStager):
        results += ahead(contender, [ids for ids, _ in work.of("chunk")])
        results.append(waits(contender, [ids for ids, _ in work.of("window1")]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [{"contender": name, **r, "peak_mib": peak} for r in results]


def ahead(contender: OurStager, chunks: list[np.ndarray]) -> list[dict[str, Any]]:
    """Cold chunks with and without a request that precedes 1.5 times the cold time of other work."""
    cold, hidden = [], []
    for ids in chunks:
        contender.forget()
        before = contender.stall_ns()
        contender.gather(ids)
        cold.append(contender.stall_ns() - before)
    for ids in chunks:
        contender.forget()
        contender.stager.request(ids, PAST)
        time.sleep(1.5e-9 * float(np.median(cold)))
        before = contender.stall_ns()
        contender.gather(ids)
        hidden.append(contender.stall_ns() - before)
    share = 1 - float(np.sum(hidden)) / float(np.sum(cold))
    return [{"case": "chunk read ahead", "rows": CHUNK * HEADS, "hidden": share, "p50_ms": np.median(hidden) / 1e6}]


def waits(contender: OurStager, windows: list[np.ndarray]) -> dict[str, Any]:
    """The part of a cached one-token embed that waits for rows."""
    stalls = []
    for ids in windows * 2:
        before = contender.stall_ns()
        contender.gather(ids)
        stalls.append(contender.stall_ns() - before)
    p50, p99 = np.percentile(stalls[len(windows) :], [50, 99])
    return {"case": "wait of a cached token", "rows": HEADS, "p50_ms": p50 / 1e6, "p99_ms": p99 / 1e6}


def table(results: list[dict[str, Any]]) -> None:
    for case in dict.fromkeys(r["case"] for r in results):
        print(f"\n{case}")
        for r in (r for r in results if r["case"] == case):
            line = f"  {r['contender']:24} p50 {r['p50_ms']:10.4f} ms"
            if "p99_ms" in r:
                line += f"  p99 {r['p99_ms']:10.4f} ms"
            if "cpu_ms" in r:
                line += f"  cpu {r['cpu_ms']:9.4f} ms  {1e3 * r['rows'] / r['p50_ms']:12,.0f} rows/s"
                line += f"  peak {r['peak_mib']:6.0f} MiB"
            if "hidden" in r:
                line += f"  hidden {100 * r['hidden']:.1f} %"
            print(line)


def append_csv(path: Path, results: list[dict[str, Any]], gigabytes: float) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    facts = {"bench": "ple", "commit": commit.strip(), "machine": platform.processor() or platform.machine()}
    facts |= {"cores": os.cpu_count(), "table_gb": gigabytes, "command": " ".join(sys.argv)}
    fields = [*facts, "contender", "case", "rows", "p50_ms", "p99_ms", "cpu_ms", "hidden", "peak_mib"]
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as f:
        writer = csv.DictWriter(f, fields)
        if new:
            writer.writeheader()
        writer.writerows({**facts, **r} for r in results)


def interleave(folder: Path, n_rows: int) -> None:
    from qwenmtp import _core

    planar = folder / "ngram-table.safetensors"
    row_format = _core.RowFormat(dim=DIM, coding=_core.Coding.affine, bits=4, group_size=GROUP)
    shard = _core.PleShard(n_rows, [_core.PlePlane(str(planar), o) for o in planes_of(planar)[1]])
    source = _core.PleTable.open(_core.PleTableSpec(row_format, [shard]))
    writer = _core.PleRowFileWriter(source, str(folder / "ngram-table.rows"))
    while writer.rows_done < n_rows:
        writer.step(1 << 20)
    writer.commit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=0.5, help="size of the table (default 0.5)")
    parser.add_argument("--dir", type=Path, help="where the table is written (default: a temporary folder)")
    parser.add_argument("--chunks", type=int, default=5, help="chunks of 2,048 tokens a case (default 5)")
    parser.add_argument("--windows", type=int, default=200, help="decode windows a case (default 200)")
    parser.add_argument("--mtplx", type=Path, help="Python of an environment with MTPLX; left out without")
    parser.add_argument("--out", type=Path, help="CSV file to append to")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "python"))
    if args.measure:
        print(json.dumps(measure(args.measure, args.dir)))
        return
    n_rows = int(args.gb * 1e9) // sum(ROW_BYTES)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="bench-ple-") as name:
        folder = Path(name)
        write_table(folder / "ngram-table.safetensors", n_rows)
        interleave(folder, n_rows)
        Work.write(folder / "work.npz", n_rows, args.chunks, args.windows)
        for contender in CONTENDERS:
            theirs = contender.startswith("MTPLX")
            if theirs and not args.mtplx:
                continue
            command = [str(args.mtplx) if theirs else sys.executable, __file__, "--measure", contender, "--dir", name]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{contender}: {done.stderr}")
            results += json.loads(done.stdout.splitlines()[-1])
    if args.json:
        print(json.dumps({"table_gb": args.gb, "results": results}))
    else:
        table(results)
    if args.out:
        append_csv(args.out, results, args.gb)


if __name__ == "__main__":
    main()
