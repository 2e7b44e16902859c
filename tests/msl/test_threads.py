"""The checked CPU threads themselves: each function of the shim, each kind of finding."""

import ml_dtypes
import numpy as np
import pytest
from msl.harness.cpu import SCHEDULES, refuse_bare_threadgroup, run, run_text
from msl.harness.spec import parse

LANES = np.arange(32, dtype=np.float32)


def probe(
    body: str, x: np.ndarray, shared: str = "", out: str = "float32", grid: int = 32, schedule: str = "ascending"
):
    """Runs `body` once a thread with i, lane, x, y and, if asked for, the threadgroup array s."""
    text = (
        "template <typename T, typename X, typename S>\n"
        "METAL_FUNC void probe(X x, device T* y, S s, int i, int lane, int group) {\n"
        f"(void)s;\n(void)lane;\n(void)group;\n{body}\n}}\n"
        "//@kernel probe\n//@template T:type N:int\n"
        f"//@in x {x.dtype.name} n\n//@out y {out} N\n"
        + (f"//@shared {shared}\n" if shared else "")
        + f"//@grid {grid}, 1, 1\n//@group {min(grid, 64)}, 1, 1\n"
        f"//@call probe<T>(x, y, {'s' if shared else '0'}, int(thread_position_in_grid.x),\n"
        "//@call int(thread_index_in_simdgroup), int(threadgroup_position_in_grid.x));\n"
    )
    template = {"T": out, "N": grid}
    return run(parse(text, "probe.metal")["probe"], template, [x], schedule)


FUNCTIONS = {
    "simd_sum(x[i])": np.full(32, 496.0),
    "simd_max(x[i])": np.full(32, 31.0),
    "simd_shuffle(x[i], ushort(31 - lane))": LANES[::-1],
    "simd_shuffle_xor(x[i], ushort(5))": LANES[np.arange(32) ^ 5],
    "simd_broadcast(x[i], ushort(9))": np.full(32, 9.0),
    "simd_prefix_exclusive_sum(x[i])": np.cumsum(LANES) - LANES,
    "metal::fma(x[i], 3.0f, 1.0f)": LANES * 3 + 1,
    "metal::exp(x[i])": np.exp(LANES),
    "metal::log(x[i] + 1.0f)": np.log(LANES + 1),
    "metal::sqrt(x[i])": np.sqrt(LANES),
    "metal::rsqrt(x[i] + 1.0f)": 1 / np.sqrt(LANES + 1),
    "metal::abs(x[i] - 9.0f)": np.abs(LANES - 9),
    "metal::max(x[i], 4.0f)": np.maximum(LANES, 4),
    "metal::min(x[i], 4.0f)": np.minimum(LANES, 4),
    "metal::max(as_type<float>(0x7fc00000u), x[i])": LANES,
    "float(metal::popcount(uint(i)))": [bin(i).count("1") for i in range(32)],
    "as_type<float>(as_type<uint>(x[i]))": LANES,
    "float4(1.0f, 2.0f, x[i], 4.0f).z": LANES,
    "float2(x[i], 2.0f).x": LANES,
}


@pytest.mark.parametrize("expression", FUNCTIONS)
def test_function(expression: str) -> None:
    result = probe(f"y[i] = {expression};", LANES)
    assert not result.findings, result.findings
    np.testing.assert_allclose(result.outputs[0], FUNCTIONS[expression], rtol=1e-6)


def test_simd_sum_is_the_ascending_butterfly() -> None:
    x = np.random.default_rng(3).standard_normal(32).astype(np.float32)
    want = x.copy()
    for mask in (1, 2, 4, 8, 16):
        want = want + want[np.arange(32) ^ mask]
    np.testing.assert_array_equal(probe("y[i] = simd_sum(x[i]);", x).outputs[0], want)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_rounding_of_a_16_bit_type(dtype) -> None:
    x = np.random.default_rng(3).standard_normal(4096).astype(np.float32) * 70000
    x[:4] = [np.inf, -np.inf, 0.0, -0.0]
    name = np.dtype(dtype).name
    word = "bfloat16_t" if name == "bfloat16" else "float16_t"
    with np.errstate(over="ignore"):
        want = x.astype(dtype)
    got = probe(f"y[i] = static_cast<{word}>(x[i]);", x, out=name, grid=4096).outputs[0]
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
FOUND = {  # body, threadgroup array, threads -> kind
    "order by a barrier": (f"s[i] = x[i]; {BARRIER} y[i] = s[63 - i];", "float s[64]", 64, ""),
    "read of another simdgroup's write": ("s[i] = x[i]; y[i] = s[63 - i];", "float s[64]", 64, "race-threadgroup"),
    "order inside a simdgroup": (
        "s[i] = x[i]; simdgroup_barrier(mem_flags::mem_threadgroup); y[i] = s[i ^ 1];",
        "float s[64]",
        64,
        "",
    ),
    "a simdgroup barrier without memory": (
        "s[i] = x[i]; simdgroup_barrier(mem_flags::mem_none); y[i] = s[i ^ 1];",
        "float s[64]",
        64,
        "race-threadgroup",
    ),
    "a simd function orders no memory": (
        "s[i] = x[i]; simd_sum(1.0f); y[i] = s[i ^ 1];",
        "float s[64]",
        64,
        "race-threadgroup",
    ),
    "atomics on one word": (
        "if (i == 0) { atomic_store_explicit(&s[0], 0u, memory_order_relaxed); } " + BARRIER + " "
        "atomic_fetch_add_explicit(&s[0], 1u, memory_order_relaxed); " + BARRIER + " "
        "y[i] = float(atomic_load_explicit(&s[0], memory_order_relaxed)) + x[i];",
        "atomic_uint s[1]",
        64,
        "",
    ),
    "a load among additions": (
        "if (i == 0) { atomic_store_explicit(&s[0], 0u, memory_order_relaxed); } " + BARRIER + " "
        "atomic_fetch_add_explicit(&s[0], 1u, memory_order_relaxed); "
        "y[i] = float(atomic_load_explicit(&s[0], memory_order_relaxed)) + x[i];",
        "atomic_uint s[1]",
        64,
        "race-threadgroup",
    ),
    "a store among additions": (
        "if (i == 0) { atomic_store_explicit(&s[0], 0u, memory_order_relaxed); } else { "
        "atomic_fetch_add_explicit(&s[0], 1u, memory_order_relaxed); } y[i] = x[i];",
        "atomic_uint s[1]",
        64,
        "race-threadgroup",
    ),
    "two writers of an output": ("y[0] = x[i]; y[i] = x[i];", "", 64, "race-device"),
    "writers in two threadgroups": ("y[i] = x[i]; if (i % 64 == 0) { y[0] = x[i]; }", "", 128, "race-device"),
    "input past its end": ("y[i] = x[i + 1];", "", 128, "oob-device"),
    "input before its start": ("y[i] = x[i - 1];", "", 128, "oob-device"),
    "threadgroup array past its end": ("s[i + 1] = x[i]; y[i] = x[i];", "float s[64]", 64, "oob-threadgroup"),
    "threadgroup memory never written": ("y[i] = s[i];", "float s[64]", 64, "uninit-threadgroup"),
    "threadgroup memory of the group before": (
        f"if (group == 0) {{ s[i] = x[i]; }} {BARRIER} y[i] = s[i % 64];",
        "float s[64]",
        128,
        "uninit-threadgroup",
    ),
    "output read before it is written": ("y[i] = y[i] + x[i];", "", 64, "uninit-device"),
    "output left out": ("if (i != 7) { y[i] = x[i]; }", "", 64, "unwritten-output"),
    "input written": ("const_cast<float*>(&x[0])[i] = 1.0f; y[i] = 1.0f;", "", 64, "write-to-input"),
    "a barrier for half a simdgroup": (f"if (lane < 16) {{ {BARRIER} }} y[i] = x[i];", "", 64, "barrier-after-exit"),
    "two barriers for one": (
        f"if (lane < 16) {{\n{BARRIER}\n}} else {{\n{BARRIER}\n}} y[i] = x[i];",
        "",
        64,
        "divergent-barrier",
    ),
    "return before a barrier": (f"y[i] = x[i]; if (i == 3) {{ return; }} {BARRIER}", "", 64, "barrier-after-exit"),
    "return before a simd function": (
        "y[i] = x[i]; if (i == 3) { return; } simd_sum(1.0f);",
        "",
        64,
        "simd-op-after-exit",
    ),
    "lanes at two simd functions": (
        "y[i] = x[i]; if (lane < 3) {\nsimd_sum(1.0f);\n} else {\nsimd_max(1.0f);\n}",
        "",
        64,
        "divergent-simd-op",
    ),
    "a lane past the edge": ("y[i] = simd_shuffle(x[i], ushort(40));", "", 64, "simd-read-inactive"),
    "one simdgroup waits, one has a barrier": (
        f"y[i] = x[i]; if (i < 32) {{ {BARRIER} }} else if (lane < 9) {{ simdgroup_barrier(mem_flags::mem_none); "
        f"{BARRIER} }} else {{ {BARRIER} }}",
        "",
        64,
        "deadlock",
    ),
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_finding(name: str, schedule: str) -> None:
    body, shared, grid, kind = FOUND[name]
    x = np.random.default_rng(3).standard_normal(grid).astype(np.float32)
    kinds = {f.kind for f in probe(body, x, shared, grid=grid, schedule=schedule).findings}
    assert kind in kinds if kind else not kinds, kinds


@pytest.mark.parametrize("cuda_grid", [False, True])
def test_edge_of_the_grid(cuda_grid: bool) -> None:
    """Metal's last threadgroup is short; CUDA's is whole and runs past the arrays."""
    code = "[[kernel]] void f(\n  const device float* x [[buffer(0)]],\n  device float* y [[buffer(1)]],\n"
    code += "  uint3 thread_position_in_grid [[thread_position_in_grid]]) {\n"
    code += "y[thread_position_in_grid.x] = x[thread_position_in_grid.x];\n}\n"
    x = np.zeros(80, np.float32)
    result = run_text(code, ["x"], [x], [("y", "float32")], [(80,)], (80, 1, 1), (64, 1, 1), cuda_grid=cuda_grid)
    assert [f.kind for f in result.findings] == ["oob-device"] * cuda_grid


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("threadgroup float a[3];", True),
        ("threadgroup atomic_uint c;", True),
        ("TGMEM float a[3]; // threadgroup float", False),
        ("void f(threadgroup float* p, threadgroup float (&r)[3], const threadgroup int& x);", False),
    ],
)
def test_bare_threadgroup(code: str, bad: bool) -> None:
    if bad:
        with pytest.raises(ValueError, match="without TGMEM"):
            refuse_bare_threadgroup(code)
    else:
        refuse_bare_threadgroup(code)
