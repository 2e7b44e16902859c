"""Runs a kernel's text on checked CPU threads and hands back what it did.

The text is compiled as MLX would pass it on, with the access hooks of
-fsanitize=thread; shim/ has the threads and the checks. Findings are part of
the result, never an exception.
"""

import ctypes
import hashlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np

from . import text
from .spec import Kernel, Shape, Value, evaluate

SHIM = Path(__file__).parent / "shim"
CACHE = Path(__file__).parents[3] / ".cache" / "msl"
CXX = os.environ.get("CXX", "g++")
SCHEDULES = {"ascending": 0, "descending": 1, "random": 2}
NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}

# One access a source access, so that a finding names the right line.
_FLAGS = ["-std=c++20", "-O1", "-g1", "-fPIC", "-w", "-I", str(SHIM), "-fno-strict-aliasing", "-fvisibility=hidden"]
_FLAGS += ["-ffp-contract=off", "-mfma"] if os.uname().machine == "x86_64" else ["-ffp-contract=off"]
if "clang" in CXX:
    _FLAGS += ["-Xclang", "-ffloat16-excess-precision=none", "-mllvm", "-tsan-instrument-read-before-write=1"]
else:
    _FLAGS += ["-fexcess-precision=16", "-fno-gnu-unique"]


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of a spec's dtype name."""
    return NUMPY.get(name) or np.dtype(name)


@dataclass(frozen=True)
class Finding:
    """One fault of a kernel: its kind, the source lines, a sentence."""

    kind: str
    lines: str
    text: str


@dataclass(frozen=True)
class Result:
    """Outputs and findings of one launch.

    `used`: elements of each input, then output, up to the highest access;
    `tg_bytes`: size of all threadgroup arrays.
    """

    outputs: list[np.ndarray]
    findings: list[Finding]
    used: list[int]
    tg_bytes: int


def run(
    kernel: Kernel,
    template: Mapping[str, Value],
    inputs: Sequence[np.ndarray],
    schedule: str = "ascending",
    cuda_grid: bool = False,
    cut: tuple[int, int] | None = None,
) -> Result:
    """Launches a kernel and waits for it.

    Args:
        kernel: The spec.
        template: Template arguments by name, in the spec's order.
        inputs: One array an input, dtype and shape as the spec says.
        schedule: Which ready thread runs next: a key of SCHEDULES.
        cuda_grid: Whole threadgroups at the edges of the grid, as CUDA has it.
        cut: Index of an input, or past these an output, and the elements it really has: a fault to report.
    """
    sizes = kernel.bind(template, [a.shape for a in inputs])
    grid, group = kernel.geometry(sizes)
    meta = []
    for argument, array in zip(kernel.inputs, inputs, strict=True):
        want = numpy_dtype(kernel.dtype(argument, template))
        if array.dtype != want:
            raise ValueError(f"[{kernel.name}] {argument.name} is {array.dtype}, expected {want}")
        meta.append(text.Input(argument.name, array.dtype.name, array.size, array.ndim))
    outs = [(a.name, kernel.dtype(a, template)) for a in kernel.outputs]
    code = text.metal(kernel.name, _header(kernel), kernel.source, template, meta, outs)
    arrays = [np.ascontiguousarray(a) for a in inputs]
    shapes = [tuple(evaluate(d, sizes) for d in a.dims) for a in kernel.outputs]
    if cut and cut[0] < len(arrays):
        arrays[cut[0]] = arrays[cut[0]].ravel()[: cut[1]]
    elif cut:
        shapes[cut[0] - len(arrays)] = (cut[1],)
    return run_text(code, [a.name for a in kernel.inputs], arrays, outs, shapes, grid, group, schedule, cuda_grid)


def run_text(
    code: str,
    names: Sequence[str],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[tuple[str, str]],
    shapes: Sequence[Shape],
    grid: Shape,
    group: Shape,
    schedule: str = "ascending",
    cuda_grid: bool = False,
) -> Result:
    """Runs generated text, ours or MLX's own capture; see `run`."""
    program = _program(code)
    buffers = [_Guarded(n, a, 0) for n, a in zip(names, inputs, strict=True)]
    for (name, dtype), shape in zip(outputs, shapes, strict=True):
        filled = np.full(int(np.prod(shape)) * numpy_dtype(dtype).itemsize, 0xFF, np.uint8)
        buffers.append(_Guarded(name, filled.view(numpy_dtype(dtype)).reshape(shape), 1))
    launch = _Launch(
        entry=program.entry,
        grid=(ctypes.c_uint32 * 3)(*grid),
        group=(ctypes.c_uint32 * 3)(*group),
        bufs=(_Buffer * len(buffers))(*[b.description() for b in buffers]),
        n_bufs=len(buffers),
        tgvars=(_Variable * max(1, len(program.variables)))(*program.variables),
        n_tgvars=len(program.variables),
        schedule=SCHEDULES[schedule],
        seed=1,
        cuda_grid=cuda_grid,
    )
    raw = (_Finding * 64)()
    count = _runtime().msl_run(ctypes.byref(launch), raw, len(raw))
    findings: dict[tuple[str, str], Finding] = {}
    for f in raw[:count]:
        lines = f"{f.file.decode()}:{f.line}" if f.line else " / ".join(program.line(pc) for pc in (f.pc1, f.pc2) if pc)
        findings.setdefault((f.kind.decode(), lines), Finding(f.kind.decode(), lines, f.text.decode()))
    results = [b.array() for b in buffers[len(inputs) :]]
    used = [d.used // d.elem for d in launch.bufs[: len(buffers)]]
    for b in buffers:
        b.free()
    return Result(results, list(findings.values()), used, sum(v.size for v in program.variables))


def refuse_bare_threadgroup(code: str) -> None:
    """Raises ValueError where a threadgroup variable is declared without TGMEM.

    The shims erase the bare keyword, so each thread would get its own copy.
    """
    plain = re.sub(r"//[^\n]*|^#.*$", lambda m: " " * len(m[0]), code, flags=re.M)
    for m in re.finditer(r"\bthreadgroup\b", plain):
        rest = plain[m.end() :]
        declarator = re.match(r"[^;{}()=\[]*", rest)
        assert declarator
        reference = re.match(r"\(\s*[*&]", rest[declarator.end() :])
        if "*" not in declarator[0] and "&" not in declarator[0] and not reference:
            line = plain.count("\n", 0, m.start()) + 1
            raise ValueError(f"[cpu.run] line {line} declares a threadgroup variable without TGMEM")


def _header(kernel: Kernel) -> str:
    """The header with the lines of each file counted on their own."""
    return "".join(f'#line 1 "{name}"\n{text}\n' for name, text in kernel.files) + f'#line 1 "{kernel.name}.call"\n'


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("elem", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
    ]


class _Variable(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_uint64), ("name", ctypes.c_char_p)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("bufs", ctypes.POINTER(_Buffer)),
        ("n_bufs", ctypes.c_uint32),
        ("tgvars", ctypes.POINTER(_Variable)),
        ("n_tgvars", ctypes.c_uint32),
        ("schedule", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("cuda_grid", ctypes.c_uint32),
    ]


class _Finding(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_char * 32),
        ("text", ctypes.c_char * 400),
        ("pc1", ctypes.c_uint64),
        ("pc2", ctypes.c_uint64),
        ("file", ctypes.c_char * 128),
        ("line", ctypes.c_int),
        ("count", ctypes.c_uint64),
    ]


def _compile(key: str, arguments: Sequence[str], sources: Sequence[Path]) -> Path:
    """A shared object by content key; built aside and renamed, so that runs may race."""
    out = CACHE / f"{key}.so"
    if not out.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        built = CACHE / f"{key}.{os.getpid()}.so"
        done = subprocess.run(
            [CXX, *arguments, "-shared", "-o", built, *sources], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        built.rename(out)
    return out


@cache
def _shim_text() -> str:
    return CXX + "".join(p.read_text() for p in sorted(SHIM.glob("*.[hc]*")))


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


@cache
def _runtime() -> ctypes.CDLL:
    sources = sorted(SHIM.glob("*.cpp"))
    path = _compile(_key("runtime", _shim_text()), ["-std=c++20", "-O2", "-g", "-fPIC"], sources)
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


class _Program:
    """A compiled kernel: its entry and its threadgroup variables."""

    def __init__(self, code: str) -> None:
        refuse_bare_threadgroup(code)
        source = _with_entry(code)
        key = _key(_shim_text(), " ".join(_FLAGS), source)
        cpp, obj = CACHE / f"{key}.cpp", CACHE / f"{key}.o"
        if not (CACHE / f"{key}.so").exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            cpp.write_text(source)
            done = subprocess.run(
                [CXX, *_FLAGS, "-fsanitize=thread", "-c", "-o", obj, cpp], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(done.stderr)
        # Linked without the sanitizer: the runtime has its hooks.
        self.path = _compile(key, [], [obj])
        _runtime()
        library = ctypes.CDLL(str(self.path))
        self.entry = ctypes.cast(library.msl_entry, ctypes.c_void_p).value or 0
        listing = subprocess.check_output(["nm", "-S", "-C", "--defined-only", self.path], text=True)
        symbols = [line.split(None, 3) for line in listing.splitlines()]
        (at,) = [int(s[0], 16) for s in symbols if s[-1] == "msl_entry"]
        self.base = self.entry - at
        self.variables = [
            _Variable(self.base + int(s[0], 16), int(s[1], 16), s[3].split("::")[-1].encode())
            for s in symbols
            if len(s) == 4 and s[2] in "bBdDuVv" and "::" in s[3]
        ]

    def line(self, pc: int) -> str:
        """Innermost line of kernel text at a code address."""
        found = subprocess.check_output(["addr2line", "-i", "-e", self.path, hex(pc - 1 - self.base)], text=True)
        lines = [x for x in found.splitlines() if str(SHIM) not in x and re.search(r"\.(metal|call|h):", x)]
        return Path(lines[0].split(" ")[0]).name if lines else "?"


@cache
def _program(code: str) -> _Program:
    return _Program(code)


def _with_entry(code: str) -> str:
    """Generated text as C++, with the function that Python calls for each thread."""
    signature = re.search(r"\[\[kernel\]\] void (\w+)\(\n(.*?)\) \{\n", code, re.S)
    assert signature
    instance = re.search(r"decltype\((.*?)\) ", code)
    call, n_buffers = [], 0
    for parameter in signature[2].split(",\n"):
        m = re.match(r"\s*(.*?)([*&]?) (\w+) \[\[(.*)\]\]", parameter)
        assert m
        if m[4].startswith("buffer"):
            call.append(f"{'*' if m[2] == '&' else ''}({m[1]}*)b[{n_buffers}]")
            n_buffers += 1
        else:
            call.append(f"msl_id(d->{m[4]})")
    # clang refuses attributes after `template`; the entry below instantiates.
    body = code.rsplit("\ntemplate [[host_name", 1)[0]
    return (
        f'#include "msl_cpu.h"\n{body}\n'
        'extern "C" __attribute__((visibility("default"))) void msl_entry(void* const* b, const msl_ids* d) {\n'
        f"  (void)d;\n  {instance[1] if instance else signature[1]}({', '.join(call)});\n}}\n"
    )


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_GAP = 1 << 32


class _Guarded:
    """A copy of an array between two stretches of 4 GiB of unmapped addresses."""

    def __init__(self, name: str, array: np.ndarray, flags: int) -> None:
        self.name, self.flags = name.encode(), flags
        self.dtype, self.shape, self.n = array.dtype, array.shape, array.nbytes
        pages = max(4096, -(-self.n // 4096) * 4096)
        self.span = 2 * _GAP + pages
        self.map = _LIBC.mmap(None, self.span, 0, 0x4022, -1, 0)  # private, anonymous, no reserve
        _LIBC.mprotect(self.map + _GAP, pages, 3)
        self.address = (self.map + _GAP + pages - self.n) & ~15  # ends with the page
        ctypes.memmove(self.address, array.ctypes.data, self.n)

    def description(self) -> _Buffer:
        return _Buffer(self.address, self.n, 0, self.dtype.itemsize, self.flags, self.name)

    def array(self) -> np.ndarray:
        return np.frombuffer(ctypes.string_at(self.address, self.n), self.dtype).reshape(self.shape).copy()

    def free(self) -> None:
        _LIBC.munmap(self.map, self.span)
