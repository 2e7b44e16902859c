"""Seeds faults into a correct kernel, one at a time, for the harness to report.

A mutation is text to text: the same kernel with one barrier gone or weakened,
one simdgroup call that lanes skip, one threadgroup array an element short.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .spec import Kernel

_BARRIER = re.compile(r"(threadgroup|simdgroup)_barrier\(mem_flags::\w+\);")
_SIMD_CALL = re.compile(r"\bsimd_(sum|max|shuffle|shuffle_xor|broadcast|prefix_exclusive_sum)\(")


@dataclass(frozen=True)
class Fault:
    """A mutated kernel, what was done to it, and where: kernels share functions."""

    kernel: Kernel
    what: str
    place: str

    @property
    def id(self) -> str:
        """kernel-what-where, as pytest shows it."""
        return f"{self.kernel.name}-{self.what}-{self.place}"


def seeded(kernel: Kernel) -> Iterator[Fault]:
    """Every fault that this module can put into a kernel."""
    yield from removed_barriers(kernel)
    yield from weakened_barriers(kernel)
    yield from divergent_simd_calls(kernel)
    yield from short_arrays(kernel)


def removed_barriers(kernel: Kernel) -> Iterator[Fault]:
    """Each barrier, gone."""
    for m in _matches(_BARRIER, kernel):
        yield _changed(kernel, m, "", "no barrier")


def weakened_barriers(kernel: Kernel) -> Iterator[Fault]:
    """Each threadgroup barrier without its memory, or for one simdgroup only."""
    for m in _matches(_BARRIER, kernel):
        if m[1] == "threadgroup":
            yield _changed(kernel, m, "threadgroup_barrier(mem_flags::mem_none);", "mem_none")
            yield _changed(kernel, m, m[0].replace("threadgroup_b", "simdgroup_b"), "simdgroup barrier")


def divergent_simd_calls(kernel: Kernel) -> Iterator[Fault]:
    """Each simdgroup call, skipped by lane 31 of the harness."""
    for m in _matches(_SIMD_CALL, kernel):
        end, depth = m.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(m.string[end], 0)
            end += 1
        call = m.string[m.start() : end]
        yield _changed(kernel, m, f"(msl_lane() < 31 ? {call} : 0)", f"lane 31 skips {m[0]})", end)


def short_arrays(kernel: Kernel) -> Iterator[Fault]:
    """Each threadgroup array, one element short."""
    for i, declaration in enumerate(kernel.shared):
        short = re.sub(r"\[(.*)\]", r"[(\1) - 1]", declaration)
        shared = (*kernel.shared[:i], short, *kernel.shared[i + 1 :])
        yield Fault(replace(kernel, shared=shared), f"short {declaration}", kernel.name)


def _matches(pattern: re.Pattern[str], kernel: Kernel) -> Iterator[re.Match[str]]:
    """Matches in the functions that a launch of this kernel reaches."""
    bodies = {name: (text, at) for _, text in kernel.files for name, at in _functions(text)}
    reached, todo = set(), [kernel.source]
    while todo:
        code = todo.pop()
        for name in bodies.keys() & set(re.findall(r"\w+", code)) - reached:
            reached.add(name)
            text, at = bodies[name]
            todo.append(text[at])
    for name in sorted(reached):
        text, at = bodies[name]
        yield from pattern.finditer(text, at.start, at.stop)


def _functions(text: str) -> Iterator[tuple[str, slice]]:
    """Name and body of each function of a file."""
    for m in re.finditer(r"^( *)METAL_FUNC [\w ]+?(\w+)\(", text, re.M):
        begin = text.index("{", m.end())
        yield m[2], slice(begin, text.index(f"\n{m[1]}}}\n", begin))


def _changed(kernel: Kernel, m: re.Match[str], by: str, what: str, end: int = -1) -> Fault:
    """The kernel with a match (or all up to `end`) replaced in its file."""
    changed = m.string[: m.start()] + by + m.string[end if end >= 0 else m.end() :]
    files = tuple((name, changed if text == m.string else text) for name, text in kernel.files)
    (file,) = [name for name, text in kernel.files if text == m.string]
    return Fault(replace(kernel, files=files), what, f"{file}:{m.string.count(chr(10), 0, m.start()) + 1}")
