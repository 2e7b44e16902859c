"""Time of each CPU kernel at demo shapes, of MLX's own operators beside `rows`, and of a copy; one interleaved run.

    PYTHONPATH=python python benchmarks/bench_kernels.py [--threads N] [--repeats N] [--csv FILE]
    python benchmarks/bench_kernels.py --device ...    the kernel text on a CUDA device: bench_device.py

A case is the mean of 32 nodes queued in one evaluation, its number the median over the repeats. Bytes are a node's
inputs and outputs; of a stack of experts only the rows taken count.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))  # behind an installed one
if "--device" not in sys.argv:
    from _qwenmtp_testing import kernels

Array = np.ndarray
NODES = 32
EPS = 1e-6


@dataclass(frozen=True)
class Case:
    name: str
    shape: str
    n_bytes: int
    seconds: Callable[[], float]


def bf16(a: Array) -> Array:
    """Upper halves of float32, which is what the kernels take for bfloat16."""
    return (np.ascontiguousarray(a, np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Shapes:
    """Random arrays of the demo geometry for n rows."""

    def __init__(self, n: int) -> None:
        self.n, self.rng = n, np.random.default_rng(n)

    def x(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape, np.float32)

    def w(self, *shape: int) -> Array:
        return bf16(self.rng.standard_normal(shape, np.float32) * shape[-1] ** -0.5)

    def packed(self, out: int, cols: int, bits: int, group: int) -> tuple:
        words = self.rng.integers(0, 2**32, (out, cols * bits // 32), np.uint32)
        scales = bf16(np.full((out, cols // group), 0.01, np.float32))
        return (words, scales, scales, bits, group)

    def case(self, name: str, shape: str, launch: object, arrays: list[Array], extra: int = 0) -> Case:
        n_bytes = sum(a.nbytes for a in arrays) + extra
        return Case(name, f"{self.n} x {shape}", n_bytes, lambda: launch.seconds(NODES) / NODES)

    def rows(self) -> list[Case]:
        cases = []
        for out, cols in ((3072, 256), (256, 1536), (4096, 256)):
            x = self.x(self.n, cols)
            kinds = {
                "f32": (self.x(out, cols),),
                "bf16": (self.w(out, cols),),
                "4-bit g32": self.packed(out, cols, 4, 32),
                "8-bit g64": self.packed(out, cols, 8, 64),
            }
            for kind, m in kinds.items():
                arrays = [x, *(a for a in m if isinstance(a, np.ndarray))]
                shape, y = f"{cols} -> {out} {kind}", 4 * self.n * out
                cases.append(self.case("rows", shape, kernels.rows(x, [m]), arrays, y))
                if kind != "bf16":  # MLX would widen a bf16 matrix each time
                    cases.append(self.case("rows, stock MLX", shape, kernels.stock_rows(x, [m]), arrays, y))
        return cases

    def hyper(self) -> Case:
        n, c, h, r = self.n, 4, 256, 32
        x, y, g = self.x(n, c * h), self.x(n, h), self.x(n, c)
        norm, down, up, inject = self.x(c * h), self.w(r, c * h), self.w(c * h, r), self.w(c, c * h)
        launch = kernels.hyper_write_read(x, y, g, norm, (down,), (up,), (inject,), c, EPS)
        return self.case("hyper write + read", "4 x 256", launch, [x, x, y, y, g, g, norm, down, up, inject])

    def gdn(self) -> Case:
        n, hk, hv, d = self.n, 2, 4, 128
        ch = 2 * hk * d + hv * d
        w = kernels.GdnWeights(self.x(4, ch), np.abs(self.x(hv)), self.x(hv), self.x(d), hk, hv, d, d, EPS)
        qkv, a, z, conv, delta = self.x(n, ch), self.x(n, hv), self.x(n, hv * d), self.x(3, ch), self.x(hv, d, d)
        launch = kernels.gdn(qkv, a, a, z, conv, delta, w)
        return self.case("gdn", "4 heads of 128 x 128", launch, [qkv, z, z, conv, conv, delta, delta], 16 * ch)

    def moe(self) -> Case:
        n, e, k, h, i, s = self.n, 16, 4, 256, 64, 128
        shapes = [(e, h), (e, i, h), (e, i, h), (e, h, i), (s, h), (s, h), (h, s), (1, h)]
        u, w = self.x(n, h), [self.w(*shape) for shape in shapes]
        taken = min(n * k, e) * 3 * i * h * 2
        return self.case("moe", "16 experts, top 4", kernels.moe(u, [(m,) for m in w], k), [u, u, w[0], *w[4:]], taken)

    def qsa(self, past: int) -> Case:
        n, hq, hkv, d, hi, di, budget = self.n, 6, 2, 256, 4, 128, 64
        norms = [self.x(d), self.x(d), self.x(di), self.x(di)]
        w = kernels.QsaWeights(*norms, hq, hkv, hi, 4, budget, EPS)
        q, gate, iq = self.x(n, hq * d), self.x(n, 2 * hq * d), self.x(n, hi * di)
        keys, pooled = self.x(hkv, past + n, d), self.x((past + n) // 4 + 1, di)
        launch = kernels.qsa_attend(q, gate, iq, keys, keys, pooled, past, w)
        seen = min(past + n, 4 * budget + 3) * hkv * d * 4 * 2 * n
        return self.case("qsa attend", f"context {past}", launch, [q, q, gate, iq, pooled], seen)

    def sample(self, vocab: int, most: int) -> Case:
        logits = bf16(self.x(self.n, vocab))
        launch = kernels.sample(logits, 1.0 / 0.6, most)
        return self.case("sample", f"{most} of {vocab}, bf16", launch, [logits], self.n * (8 * most + 12))


def copy_case() -> Case:
    """What the machine moves in NumPy's plain copy of 64 MB, as the roofline beside."""
    source = np.ones(1 << 24, np.float32)
    target = np.empty_like(source)

    def seconds() -> float:
        started = time.perf_counter()
        np.copyto(target, source)
        return time.perf_counter() - started

    return Case("copy, one thread", "64 MB", 2 * source.nbytes, seconds)


def main() -> None:
    """Runs all cases in turns and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--only", default="", help="with --device: kernels whose name contains this")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    if args.device:
        import bench_device

        bench_device.main(args)
        return
    kernels.set_threads(args.threads or kernels.threads())
    cases = [copy_case()]
    for n in args.rows:
        s = Shapes(n)
        cases += [*s.rows(), s.hyper(), s.gdn(), s.moe(), s.qsa(250), s.qsa(32_000), s.sample(248_320, 32)]
    times: list[list[float]] = [[] for _ in cases]
    for repeat in range(args.repeats + 1):
        for case, seconds in zip(cases, times, strict=True):
            value = case.seconds()
            if repeat:  # the first turn warms up
                seconds.append(value)
    table = [
        (c.name, c.shape, statistics.median(t) * 1e6, max(t) * 1e6, c.n_bytes, c.n_bytes / statistics.median(t) / 1e9)
        for c, t in zip(cases, times, strict=True)
    ]
    print(f"{'kernel':20} {'rows x shape':34} {'us median':>10} {'us worst':>10} {'GB/s':>7}   ", end="")
    print(f"{kernels.threads()} threads")
    for name, shape, median, worst, _, rate in table:
        print(f"{name:20} {shape:34} {median:10.1f} {worst:10.1f} {rate:7.2f}")
    if args.csv:
        with args.csv.open("w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(["kernel", "rows x shape", "median_us", "worst_us", "bytes", "gb_per_s"])
            writer.writerows(table)


if __name__ == "__main__":
    main()
