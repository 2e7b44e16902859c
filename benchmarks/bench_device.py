"""Time of each kernel's text on a CUDA device, of the same work in MLX's stock operators, and of a copy.

    python benchmarks/bench_kernels.py --device [--repeats N] [--csv FILE] [--only NAME]

A time is the device's own, from the CUPTI records that PyTorch's profiler collects in this process: the sum over the
kernels of one evaluation, median of the repeats, each over another set of buffers. `wide` cases move 256 MB and more a
launch; `released` ones have the model's shapes. The limit of a released launch is the floor (an empty launch) + bytes /
(0.7 x copy bandwidth). The file is over 400 lines: a third of it is the table of cases.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from msl.families import gdn, hyper, moe, qsa, rows, sample
from msl.harness.cuda import launch

KERNELS = gdn.KERNELS | hyper.KERNELS | moe.KERNELS | qsa.KERNELS | rows.KERNELS | sample.KERNELS
EPS = mx.array([1e-6])
T = "bfloat16"
Launch = Callable[[list[mx.array]], list[mx.array]]
COLUMNS = ("kernel", "shape", "bytes", "median_us", "p90_us", "gb_per_s", "of_copy", "limit_us", "stock_us")


@dataclass
class Case:
    """`make` builds one set of buffers; `call` launches over it; `n_bytes` is what one launch has to move."""

    name: str
    shape: str
    n_bytes: int
    make: Callable[[], list[mx.array]]
    call: Launch
    stock: Launch | None = None


def one(v: int) -> mx.array:
    return mx.array([v], mx.int32)


def normal(*shape: int, scale: float = 1.0, dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    return (mx.random.normal(shape) * scale).astype(dtype)


def packed(bits: int, group: int, *shape: int) -> list[mx.array]:
    *lead, n_in = shape
    words = mx.random.randint(0, 2**31 - 1, (*lead, n_in * bits // 32), mx.int32).astype(mx.uint32)
    scales = normal(*lead, n_in // group, scale=0.01)
    return [words, scales, -scales * 2 ** (bits - 1)]


def text(name: str, template: dict, inputs: list[mx.array]) -> list[mx.array]:
    kernel = KERNELS[name]
    return launch(kernel, {n: template[n] for n, _ in kernel.template}, inputs)


def size(arrays: list[mx.array]) -> int:
    return sum(a.nbytes for a in arrays)


def matrix(tag: str, n: int, n_in: int, n_out: int, bits: int, group: int, outs: int, split: int = 1) -> Case:
    t = {
        "T": T,
        "W": T,
        "SPLIT": split,
        "ROWS": n,
        "IN": n_in,
        "OUT": n_out,
        "BITS": bits,
        "GROUP": group,
        "SILU": 0,
        "DIV": 1,
    }
    t |= {"LANES": rows.lanes(n_in // (32 if bits else 8)), "OUTS": outs}
    weights = n_out * (n_in * bits // 8 + n_in // group * 4) if bits else 2 * n_out * n_in

    def make() -> list[mx.array]:
        return [normal(n, n_in), *(packed(bits, group, n_out, n_in) if bits else [normal(n_out, n_in)])]

    def stock(a: list[mx.array]) -> list[mx.array]:
        if bits:
            return [mx.quantized_matmul(*a, transpose=True, group_size=group, bits=bits)]
        return [a[0] @ a[1].T]

    name = "rows_affine" if bits else "rows_dense"
    shape = f"{tag} {n}x{n_in}x{n_out}" + (f" {bits}/g{group}" if bits else "")
    shape += f" outs{outs}" + f" split{split}" * (split > 1)
    return Case(name, shape, weights + 2 * n * (n_in + n_out), make, lambda a: text(name, t, a), stock)


def gathered(n: int, glu: bool, bits: int, group: int, outs: int) -> Case:
    k, e, n_in, n_out = 10, 512, *((2560, 640) if glu else (640, 2560))
    t = {"T": T, "W": T, "ROWS": n, "K": k, "IN": n_in, "OUT": n_out, "BITS": bits, "GROUP": group}
    t |= {"LANES": rows.lanes(n_in // 32), "OUTS": outs}
    name = "rows_gather_glu_affine" if glu else "rows_gather_affine"
    one_matrix = n_out * (n_in * bits // 8 + n_in // group * 4)

    def make() -> list[mx.array]:
        expert = mx.random.permutation(e)[: n * k].reshape(n, k).astype(mx.int32)
        order = mx.argsort(expert.reshape(-1)).astype(mx.int32)
        weight = [] if glu else [normal(n, k)]
        w = [a for _ in range(1 + glu) for a in packed(bits, group, e, n_out, n_in)]
        return [normal(n if glu else n * k, n_in), expert, order, *weight, *w]

    def stock(a: list[mx.array]) -> list[mx.array]:
        x = a[0].reshape(n, 1, 1, n_in) if glu else a[0].reshape(n, k, 1, n_in)
        args = {"rhs_indices": a[1], "transpose": True, "group_size": group, "bits": bits}
        if not glu:
            return [mx.gather_qmm(x, *a[4:7], **args) * a[3].reshape(n, k, 1, 1)]
        gate, up = mx.gather_qmm(x, *a[3:6], **args), mx.gather_qmm(x, *a[6:9], **args)
        return [gate * mx.sigmoid(gate) * up]

    n_bytes = n * k * one_matrix * (1 + glu) + 2 * n * k * (n_in + n_out)
    return Case(
        name,
        f"released {n}x{n_in}x{n_out} {bits}/g{group} outs{outs}",
        n_bytes,
        make,
        lambda a: text(name, t, a),
        stock,
    )


def gdn_case(tag: str, n: int, keep: int, hv: int) -> Case:
    hk, d = hv // 3, 128
    t = {"T": T, "HK": hk, "HV": hv, "DK": d, "DV": d}

    def window() -> list[mx.array]:
        k = normal(n, hk, d, scale=d**-0.5)
        return [
            k,
            normal(n, hv, d),
            mx.random.uniform(shape=(n, hv)),
            mx.random.uniform(shape=(n, hv)).astype(mx.bfloat16),
        ]

    def make() -> list[mx.array]:
        k, v, g, beta = window()
        proj = normal(n, 2 * hk * d + 2 * hv * d + 2 * hv)
        state = normal(hv, d, d, dtype=mx.float32)
        return [normal(n, hk, d), k, v, g, beta, proj, normal(d), EPS, state, *window(), one(keep), one(n)]

    shape = f"{tag} {n} rows keep {keep} {hv}x128x128"
    return Case("gdn_verify_rows", shape, 2 * hv * d * d * 4, make, lambda a: text("gdn_verify_rows", t, a))


def step_case(tag: str, n: int, hv: int) -> Case:
    hk, d = hv // 3, 128
    t = {"T": T, "HK": hk, "HV": hv, "DK": d, "DV": d}

    def make() -> list[mx.array]:
        g, beta = mx.random.uniform(shape=(n, hv)), mx.random.uniform(shape=(n, hv)).astype(mx.bfloat16)
        state = normal(hv, d, d, dtype=mx.float32)
        return [normal(n, hk, d), normal(n, hk, d, scale=d**-0.5), normal(n, hv, d), g, beta, state, one(n)]

    return Case("gdn_step", f"{tag} {n} rows {hv}x128x128", 2 * hv * d * d * 4, make, lambda a: text("gdn_step", t, a))


def inputs_case(n: int) -> Case:
    hk, hv, d = 16, 48, 128
    channels = 2 * hk * d + hv * d
    width = channels + hv * d + 2 * hv
    t = {"T": T, "HK": hk, "HV": hv, "DK": d, "DV": d, "CONV": 4}

    def make() -> list[mx.array]:
        rest = [normal(4, channels, dtype=mx.float32), mx.random.uniform(shape=(hv,)), normal(hv)]
        return [normal(n, width), normal(n, width), one(n), normal(3, channels), *rest]

    n_bytes = 2 * (2 * n * width + 6 * channels) + 16 * channels + 2 * n * channels
    return Case("gdn_inputs", f"released {n} rows", n_bytes, make, lambda a: text("gdn_inputs", t, a))


def write_case(tag: str, n: int) -> Case:
    c, h = 4, 2560

    def make() -> list[mx.array]:
        return [normal(n, c * h), normal(n, h), normal(n, c), normal(c * h), EPS]

    def stock(a: list[mx.array]) -> list[mx.array]:
        x = a[0].reshape(n, c, h) + a[2][..., None] * a[1][:, None]
        return [x, mx.fast.rms_norm(x, None, 1e-6) * a[3].reshape(c, h)]

    t = {"T": T, "C": c, "H": h}
    n_bytes = 2 * n * (3 * c * h + h)
    return Case("hyper_write", f"{tag} {n} rows 4x2560", n_bytes, make, lambda a: text("hyper_write", t, a), stock)


def mix_case(tag: str, n: int, h: int) -> Case:
    c, rank = 4, 320
    t = {"T": T, "W": T, "ROWS": n, "R": rank, "H": h, "C": c, "LANES": 8}

    def make() -> list[mx.array]:
        return [normal(n, rank + 8), normal(n, c * h), normal(c * h, rank)]

    def stock(a: list[mx.array]) -> list[mx.array]:
        gate = mx.sigmoid(a[0][:, :rank] @ a[2].T).reshape(n, c, h)
        return [(gate * a[1].reshape(n, c, h)).mean(1), 2 * mx.sigmoid(a[0][:, rank : rank + c])]

    n_bytes = 2 * (c * h * rank + n * c * h + n * h)
    return Case(
        "rows_mix_dense", f"{tag} {n} rows 4x{h}x320", n_bytes, make, lambda a: text("rows_mix_dense", t, a), stock
    )


def moe_cases(n: int) -> list[Case]:
    e, k, h = 512, 10, 2560
    route = Case(
        "moe_route",
        f"released {n} rows",
        2 * n * e,
        lambda: [normal(n, e), one(n)],
        lambda a: text("moe_route", {"T": T, "E": e, "K": k}, a),
        lambda a: [mx.argpartition(mx.softmax(a[0], -1, precise=True), e - k, -1)[:, e - k :]],
    )
    combine = Case(
        "moe_combine",
        f"released {n} rows",
        2 * n * h * (k + 2),
        lambda: [normal(n, h), normal(n * k, h), normal(n, 1)],
        lambda a: text("moe_combine", {"T": T, "H": h, "K": k}, a),
        lambda a: [a[1].reshape(n, k, h).sum(1) + mx.sigmoid(a[2]) * a[0]],
    )
    return [route, combine]


def attend_case(tag: str, n: int, hkv: int, context: int) -> Case:
    hq, d, k = 12 * hkv, 256, 512
    t = {"T": T, "HQ": hq, "HKV": hkv, "D": d, "K": k, "RATIO": 4, "SPLITS": 65}
    n_visible = 4 * k + context % 4

    def make() -> list[mx.array]:
        blocks = [mx.sort(mx.random.permutation(context // 4)[:k]).astype(mx.int32) for _ in range(n)]
        kv = [normal(hkv, context + 8, d) for _ in range(2)]
        return [normal(n, hq * d), *kv, mx.stack(blocks), one(context - 1), one(context + 8)]

    def call(a: list[mx.array]) -> list[mx.array]:
        return text("qsa_attend", t, a)

    n_bytes = n * hkv * n_visible * d * 4 + 4 * n * hq * 65 * (d + 2)
    return Case("qsa_attend", f"{tag} {n} rows {hkv} KV heads at {context}", n_bytes, make, call)


def combine_case(n: int) -> Case:
    hq, d, s = 24, 256, 65

    def make() -> list[mx.array]:
        stat = mx.random.uniform(0.5, 1.5, (n, hq, s, 2))
        return [normal(n, hq, s, d, dtype=mx.float32), stat, normal(n, (2 * hq + 4) * d)]

    n_bytes = 4 * n * hq * s * (d + 2) + 6 * n * hq * d
    t = {"T": T, "HQ": hq, "HKV": 2, "D": d, "SPLITS": s}
    return Case("qsa_combine", f"released {n} rows", n_bytes, make, lambda a: text("qsa_combine", t, a))


def scores_cases(n: int, context: int) -> list[Case]:
    ni, di, blocks = 4, 128, context // 4

    def make() -> list[mx.array]:
        divisor = mx.array([di**0.5])
        return [normal(n, ni * di), normal(blocks, di), one(context - 1), divisor, one(n), one(blocks)]

    t = {"T": T, "NI": ni, "DI": di, "RATIO": 4, "K": 512}
    n_bytes = 2 * blocks * di + 4 * n * blocks
    scores = Case("qsa_scores", f"released {n} rows at {context}", n_bytes, make, lambda a: text("qsa_scores", t, a))

    def ranks() -> list[mx.array]:
        return [mx.random.uniform(shape=(n, blocks)), one(context - 1), one(blocks)]

    def top(a: list[mx.array]) -> list[mx.array]:
        return text("qsa_top_blocks", t, a)

    def stock(a: list[mx.array]) -> list[mx.array]:
        return [mx.argpartition(a[0], blocks - 512, -1)[:, blocks - 512 :]]

    return [scores, Case("qsa_top_blocks", f"released {n} rows at {context}", 4 * n * blocks, ranks, top, stock)]


def sample_cases(tag: str, n: int) -> list[Case]:
    v, m, chunk = 248320, 32, 4096
    chunks = -(-v // chunk)
    t = {"T": T, "V": v, "M": m, "CHUNK": chunk, "CHUNKS": chunks, "BLOCKS": -(-v // 512)}

    def stock(a: list[mx.array]) -> list[mx.array]:
        s = a[0].astype(mx.float32) * a[1]
        return [mx.argpartition(-s, m - 1, -1)[:, :m], mx.logsumexp(s, -1), mx.argmax(s, -1)]

    def call(a: list[mx.array]) -> list[mx.array]:
        return text("sample_chunks", t, a)

    out = [Case("sample_chunks", f"{tag} {n} rows", 2 * n * v, lambda: [normal(n, v), mx.array([1.3])], call, stock)]
    if tag == "released":

        def made() -> list[mx.array]:
            return call([normal(n, v), mx.array([1.3])])

        out.append(Case("sample_row", f"{tag} {n} rows", 8 * n * chunks * m, made, lambda a: text("sample_row", t, a)))
    return out


def copy_case(mb: int) -> Case:
    n = mb << 18
    return Case("copy", f"{mb} MB", 8 * n, lambda: [normal(n, dtype=mx.float32)], lambda a: [mx.abs(a[0])])


def empty_case() -> Case:
    return Case("empty", "one value", 4, lambda: [normal(32, dtype=mx.float32)], lambda a: [mx.abs(a[0])])


def cases() -> Iterator[Case]:
    yield empty_case()
    yield copy_case(1024)
    for outs in (1, 2, 4):
        for n in (1, 4):
            yield matrix("wide", n, 2560, 248320, 4, 64, outs)
            yield matrix("wide", n, 2560, 131072, 8, 64, outs)
            yield matrix("wide", n, 10240, 16384, 0, 0, outs)
            yield matrix("released", n, 2560, 16480, 4, 64, outs)
            yield matrix("released", n, 6144, 2560, 4, 64, outs)
            yield matrix("released", n, 10240, 328, 0, 0, outs, 4)
            yield matrix("released", n, 2560, 512, 8, 64, outs, 4)
            yield gathered(n, True, 4, 64, outs)
            yield gathered(n, False, 4, 64, outs)
    for n in (2, 8):
        yield matrix("wide", n, 2560, 248320, 4, 64, 4)
    for n in (1, 4):
        yield inputs_case(n)
        yield gdn_case("released", n, n, 48)
        yield gdn_case("wide", n, n, 2304)
        yield step_case("released", n, 48)
        yield step_case("wide", n, 2304)
        yield write_case("released", n)
        yield mix_case("released", n, 2560)
        yield mix_case("wide", n, 102400)
        yield from moe_cases(n)
        for context in (8192, 131072):
            yield from scores_cases(n, context)
            yield attend_case("released", n, 2, context)
        yield combine_case(n)
        yield from sample_cases("released", n)
    yield attend_case("wide", 1, 128, 2051)
    yield write_case("wide", 4096)
    yield from sample_cases("wide", 640)


def device_us(
    call: Callable[[list[mx.array]], list[mx.array]], sets: list[list[mx.array]], repeats: int
) -> list[float]:
    """Microseconds of device time of each repeat, from the profiler's kernel records."""
    for a in sets:  # pages of host-made arrays migrate at their first use
        mx.eval(call(a))
    mx.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for repeat in range(repeats):
            mx.eval(call(sets[repeat % len(sets)]))
            mx.synchronize()
    on_device = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events = sorted(on_device, key=lambda e: e.time_range.start)
    n, rest = divmod(len(events), repeats)
    if rest or n == 0:
        raise RuntimeError(f"{len(events)} records of {repeats} repeats: {[e.name for e in events[:6]]}")
    return [sum(e.time_range.elapsed_us() for e in events[i * n : (i + 1) * n]) for i in range(repeats)]


def main(args: argparse.Namespace) -> None:
    """Runs the cases one after the other and prints a table."""
    table = []
    floor = rate = 0.0
    print(f"{'kernel':22} {'shape':40} {'us':>8} {'p90':>8} {'GB/s':>6} {'of copy':>7} {'limit':>8} {'stock us':>8}")
    for case in cases():
        if args.only and args.only not in case.name and case.name not in ("empty", "copy"):
            continue
        n_sets = max(1, min(8, (4 << 30) // max(case.n_bytes, 1), 4 if case.n_bytes > (64 << 20) else 8))
        if case.name.startswith("rows_gather"):
            n_sets = 1  # 512 experts, of which each set of rows takes others
        sets = [case.make() for _ in range(n_sets)]
        mx.eval(sets)
        times = sorted(device_us(case.call, sets, args.repeats))
        stock = statistics.median(device_us(case.stock, sets, args.repeats)) if case.stock else None
        us, p90 = statistics.median(times), times[int(0.9 * (len(times) - 1))]
        gb_s = case.n_bytes / us / 1e3
        if case.name == "empty":
            floor = us
        if case.name == "copy":
            rate = gb_s
        limit = floor + case.n_bytes / (0.7 * rate) / 1e3 if rate else 0.0
        row = [case.name, case.shape, case.n_bytes, us, p90, gb_s, gb_s / rate if rate else 0, limit, stock or ""]
        table.append(row)
        print(
            f"{case.name:22} {case.shape:40} {us:8.1f} {p90:8.1f} {gb_s:6.0f} {row[6]:7.2f} {limit:8.1f} "
            + (f"{stock:8.1f}" if stock else ""),
            flush=True,
        )
        del sets
    if args.csv:
        with args.csv.open("w", newline="") as f:
            writer = csv.writer(f, lineterminator="\n")
            writer.writerow(
                ["kernel", "shape", "bytes", "median_us", "p90_us", "gb_per_s", "of_copy", "limit_us", "stock_us"]
            )
            writer.writerows([*r[:2], *(round(v, 3) if isinstance(v, float) else v for v in r[2:])] for r in table)
