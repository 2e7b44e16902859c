"""Reads the `//@` lines of a kernel family: what a launch is, stated once.

csrc/kernels/kernel.cpp reads the same lines with the same rules; the grammar
is in docs/kernels.md. This module refuses a line it does not know.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

METAL = Path(__file__).parents[3] / "metal"
SHARED = ("dialect.h", "numerics.h", "select.h")  # in front of every family

# dtype word of a spec -> the word MLX writes into the kernel's signature.
DTYPES = {
    "float32": "float",
    "float16": "float16_t",
    "bfloat16": "bfloat16_t",
    "int32": "int32_t",
    "uint32": "uint32_t",
    "uint8": "uint8_t",
}

Value = int | bool | str  # template argument: integer, flag or dtype name
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Argument:
    """One array of a launch: `dtype` is a dtype word or a type parameter."""

    name: str
    dtype: str
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Kernel:
    """One `//@kernel` block and the files that MLX gets as header, in order."""

    name: str
    files: tuple[tuple[str, str], ...]  # name, text
    template: tuple[tuple[str, str], ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    shared: tuple[str, ...]
    grid: tuple[str, ...]
    group: tuple[str, ...]
    call: str

    @property
    def header(self) -> str:
        """What MLX gets as `header`; on CUDA metal/cuda.h goes before it."""
        return "".join(text for _, text in self.files)

    @property
    def source(self) -> str:
        """What MLX gets as `source`: threadgroup arrays, then one call."""
        return "".join(f"TGMEM {s};\n" for s in self.shared) + self.call

    def bind(self, template: Mapping[str, Value], shapes: Sequence[Shape]) -> dict[str, int]:
        """Values of all size names: template integers and sizes read off the inputs.

        Raises:
            ValueError: a template argument is missing or a shape disagrees.
        """
        if [n for n, _ in self.template] != list(template):
            raise ValueError(f"[{self.name}] template {list(template)}, expected {[n for n, _ in self.template]}")
        sizes = {n: int(v) for n, v in template.items() if not isinstance(v, str)}
        for argument, shape in zip(self.inputs, shapes, strict=True):
            if len(shape) != len(argument.dims):
                raise ValueError(f"[{self.name}] {argument.name} has shape {shape}, expected {argument.dims}")
            for dim, size in zip(argument.dims, shape, strict=True):
                if dim not in sizes and dim.isidentifier():
                    sizes[dim] = size
                if evaluate(dim, sizes) != size:
                    raise ValueError(
                        f"[{self.name}] {argument.name} has shape {shape}, expected {dim} = {evaluate(dim, sizes)}"
                    )
        return sizes

    def dtype(self, argument: Argument, template: Mapping[str, Value]) -> str:
        """The dtype name of an argument under these template arguments."""
        return str(template.get(argument.dtype, argument.dtype))

    def geometry(self, sizes: Mapping[str, int]) -> tuple[Shape, Shape]:
        """Grid (in threads, rounded up to whole groups) and threadgroup."""
        group = tuple(evaluate(e, sizes) for e in self.group)
        grid = tuple(-(-evaluate(e, sizes) // g) * g for e, g in zip(self.grid, group, strict=True))
        return grid, group


_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(.))")


def evaluate(expression: str, sizes: Mapping[str, int]) -> int:
    """Integer value of `+ - * /` over sizes; `/` rounds up."""
    tokens = [m.groups() for m in _TOKEN.finditer(expression.strip())]
    at = 0

    def operator(of: str) -> str:
        nonlocal at
        if at < len(tokens) and tokens[at][2] and tokens[at][2] in of:
            at += 1
            return str(tokens[at - 1][2])
        return ""

    def atom() -> int:
        nonlocal at
        if at == len(tokens):
            raise ValueError(f"[spec.evaluate] {expression!r} ends early")
        number, name, other = tokens[at]
        at += 1
        if number:
            return int(number)
        if name:
            if name not in sizes:
                raise ValueError(f"[spec.evaluate] {name} in {expression!r} is not bound")
            return sizes[name]
        if other != "(":
            raise ValueError(f"[spec.evaluate] {other!r} in {expression!r}")
        value = total()
        if not operator(")"):
            raise ValueError(f"[spec.evaluate] {expression!r} lacks )")
        return value

    def product() -> int:
        value = atom()
        while op := operator("*/"):
            value = value * atom() if op == "*" else -(-value // atom())
        return value

    def total() -> int:
        value = product()
        while op := operator("+-"):
            value = value + product() if op == "+" else value - product()
        return value

    value = total()
    if at != len(tokens):
        raise ValueError(f"[spec.evaluate] {expression!r} goes on after a value")
    return value


def parse(text: str, name: str, before: Sequence[str] = SHARED) -> dict[str, Kernel]:
    """All kernels of a family's text, by name; the files `before` go in front of it."""
    files = (*((f, (METAL / f).read_text()) for f in before), (name, text))
    blocks: list[dict[str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("//@"):
            continue
        key, _, value = line[3:].partition(" ")
        if key not in ("kernel", "template", "in", "out", "shared", "grid", "group", "call"):
            raise ValueError(f"[spec.parse] {name}:{number}: //@{key}, expected a known key")
        if key == "kernel":
            blocks.append({})
        blocks[-1].setdefault(key, []).append(value.strip())
    kernels = {}
    for b in blocks:
        (kernel,) = b["kernel"]
        kernels[kernel] = Kernel(
            name=kernel,
            files=files,
            template=tuple((n, k) for n, k in (w.split(":") for w in " ".join(b.get("template", [])).split())),
            inputs=_arguments(b["in"]),
            outputs=_arguments(b["out"]),
            shared=tuple(b.get("shared", [])),
            grid=tuple(e.strip() for e in b["grid"][0].split(",")),
            group=tuple(e.strip() for e in b["group"][0].split(",")),
            call="\n".join(b["call"]),
        )
    return kernels


def _arguments(lines: Sequence[str]) -> tuple[Argument, ...]:
    out = []
    for line in lines:
        name, dtype, dims = line.split(None, 2)
        out.append(Argument(name, dtype, tuple(d.strip() for d in dims.split(","))))
    return tuple(out)


def load(family: str) -> dict[str, Kernel]:
    """The kernels of metal/<family>.metal."""
    return parse((METAL / f"{family}.metal").read_text(), f"{family}.metal")
