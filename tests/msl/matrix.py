"""Runs every kernel in both model types, every row count, schedule and grid; writes one CSV row a launch.

    python tests/msl/matrix.py docs/testing/kernel-matrix.csv

The default tests run the instantiations that ship; this is the whole table, by hand, tens of minutes.
"""

import csv
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from msl.families import embed, gdn, hyper, moe, ple, qsa, rows, sample
from msl.harness.case import Case
from msl.harness.cpu import SCHEDULES, Result
from msl.harness.lint import lint
from msl.harness.nvrtc import compile_cuda
from msl.harness.text import Input

TYPES = ("float32", "bfloat16")
ROWS = (1, 2, 4, 8)


def cases() -> Iterator[Case]:
    """The whole table. Matrices of the released width keep 16 output rows; test_kernels.py runs the released states."""
    for t, n in product(TYPES, ROWS):
        for bits, group in product((2, 3, 4, 5, 6, 8), (32, 64, 128)):
            yield embed.case("released", t, t, n, 2560, bits, group)
            yield rows.plain_case("released", t, n, 2560, 16, bits, group)
        yield embed.case("released", t, t, n, 2560, 0)
        yield rows.plain_case("released", t, n, 10240, 16, 0, split=4)
        yield rows.mix_case("released", t, n, 4, 40, 320, 0)
        yield rows.mix_case("released", t, n, 4, 40, 320, 4)
        for bits in (0, 4, 8):
            yield rows.glu_case("released", t, n, 640, 8, bits)
            yield rows.gather_case("released", t, True, n, 10, 640, 4, bits)
            yield rows.gather_case("released", t, False, n, 10, 640, 4, bits)
        yield moe.route_case("released", t, n, 512, 10)
        yield moe.combine_case("released", t, n, 2560, 10)
        yield sample.chunks_case("released", t, n, 8192, 32, 4096)
        for g in ("demo", "ragged"):
            yield gdn.inputs_case(g, t, n, 4, min(n, 4))
            yield gdn.step_case(g, t, n)
            yield gdn.norm_case(g, t, n)
            yield gdn.verify_case(g, t, n, 4, min(n, 4))
            yield hyper.norm_case(g, t, n)
            yield hyper.write_case(g, t, n)
            yield ple.gate_case(g, t, n)
            yield ple.conv_case(g, t, n)
            yield qsa.heads_case(g, t, n)
            yield qsa.pool_case(g, t, n)
            yield qsa.scores_case(g, t, n, 80, 300)
            yield qsa.attend_case(g, t, n, 290)
            yield qsa.combine_case(g, t, n, 1)
            yield qsa.keys_case(g, t, n)
    for n in ROWS:
        yield qsa.top_case("released", n, 8192, 32000)
        yield sample.row_case("released", n, 248320, 32, 4096)


def worst(case: Case, result: Result, want: list[np.ndarray]) -> float:
    """Largest error of any output, as a part of that output's largest value."""
    most = 0.0
    for got, exact in zip(result.outputs, want, strict=True):
        finite = np.isfinite(exact)
        got, exact = got[finite].astype(np.float64), exact[finite].astype(np.float64)
        scale = np.abs(exact).max(initial=1e-30)
        most = max(most, float(np.abs(got - exact).max(initial=0.0) / scale))
    return most


def main(path: str) -> int:
    n_failed = 0
    with Path(path).open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["kernel", "case", "schedule", "grid", "findings", "worst", "same_bits", "lint", "nvrtc"])
        for case in cases():
            inputs = case.inputs()
            want = list(case.oracle(inputs))
            meta = [
                Input(a.name, x.dtype.name, x.size, x.ndim) for a, x in zip(case.kernel.inputs, inputs, strict=True)
            ]
            texts = [not lint(case.kernel, case.template, meta), not compile_cuda(case.kernel, case.template)]
            first = case.run(inputs)
            case.check(first, inputs)
            for schedule, cuda_grid in [*((s, False) for s in SCHEDULES), ("random", True)]:
                result = case.run(inputs, schedule, cuda_grid)
                same = all(
                    np.array_equal(a.view(np.uint8), b.view(np.uint8))
                    for a, b in zip(first.outputs, result.outputs, strict=True)
                )
                n_failed += bool(result.findings) or not same or not all(texts)
                grid = "cuda" if cuda_grid else "metal"
                error = f"{worst(case, result, want):.1e}"
                row = [case.kernel.name, case.id, schedule, grid, len(result.findings), error, same, *texts]
                table.writerow(row)
            file.flush()
    print(f"{n_failed} launches failed")
    return bool(n_failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
