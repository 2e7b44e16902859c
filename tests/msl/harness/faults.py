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
    """A mutated kernel and what was done to it."""

    kernel: Kernel
    what: str

    @property
    def id(self) -> str:
        """kernel-what, as pytest shows it."""
        return f"{self.kernel.name}-{self.what}"


def seeded(kernel: Kernel) -> Iterator[Fault]:
    """Every fault that this module can put into a kernel."""
    yield from removed_barriers(kernel)
    yield from weakened_barriers(kernel)
    yield from divergent_simd_calls(kernel)
    yield from short_arrays(kernel)


def removed_barriers(kernel: Kernel) -> Iterator[Fault]:
    """Each barrier, gone."""
    for m in _matches(_BARRIER, kernel):
        yield _changed(kernel, m, "", f"no barrier, line {_line(kernel, m)}")


def weakened_barriers(kernel: Kernel) -> Iterator[Fault]:
    """Each threadgroup barrier without its memory, or for one simdgroup only."""
    for m in _matches(_BARRIER, kernel):
        if m[1] == "threadgroup":
            line = _line(kernel, m)
            yield _changed(kernel, m, "threadgroup_barrier(mem_flags::mem_none);", f"mem_none, line {line}")
            yield _changed(kernel, m, m[0].replace("threadgroup_b", "simdgroup_b"), f"simdgroup barrier, line {line}")


def divergent_simd_calls(kernel: Kernel) -> Iterator[Fault]:
    """Each simdgroup call, skipped by lane 31."""
    for m in _matches(_SIMD_CALL, kernel):
        end, depth = m.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(kernel.text[end], 0)
            end += 1
        call = kernel.text[m.start() : end]
        text = f"{kernel.text[: m.start()]}(lane < 31 ? {call} : 0){kernel.text[end:]}"
        yield Fault(replace(kernel, text=text), f"lane 31 skips {m[0]}), line {_line(kernel, m)}")


def short_arrays(kernel: Kernel) -> Iterator[Fault]:
    """Each threadgroup array, one element short."""
    for i, declaration in enumerate(kernel.shared):
        short = re.sub(r"\[(.*)\]", r"[(\1) - 1]", declaration)
        shared = (*kernel.shared[:i], short, *kernel.shared[i + 1 :])
        yield Fault(replace(kernel, shared=shared), f"short {declaration}")


def _matches(pattern: re.Pattern[str], kernel: Kernel) -> Iterator[re.Match[str]]:
    """Matches in the functions that a launch of this kernel reaches."""
    bodies = dict(_functions(kernel.text))
    reached, todo = set(), [kernel.source]
    while todo:
        code = todo.pop()
        for name in bodies.keys() & set(re.findall(r"\w+", code)) - reached:
            reached.add(name)
            todo.append(kernel.text[bodies[name]])
    for name in sorted(reached):
        yield from pattern.finditer(kernel.text, bodies[name].start, bodies[name].stop)


def _functions(text: str) -> Iterator[tuple[str, slice]]:
    """Name and body of each function of a family."""
    for m in re.finditer(r"^METAL_FUNC [\w ]+?(\w+)\(", text, re.M):
        begin = text.index("{", m.end())
        yield m[1], slice(begin, text.index("\n}\n", begin))


def _line(kernel: Kernel, m: re.Match[str]) -> int:
    return kernel.text.count("\n", 0, m.start()) + 1


def _changed(kernel: Kernel, m: re.Match[str], by: str, what: str) -> Fault:
    return Fault(replace(kernel, text=kernel.text[: m.start()] + by + kernel.text[m.end() :]), what)
