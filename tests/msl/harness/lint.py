"""Checks a kernel's text against Metal's address space and language rules.

clang's C++ for OpenCL has nearly the same rules; clang comes with the pip
package ziglang. It is not Apple's compiler: recursion and lambdas pass here.
"""

import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from . import text
from .cpu import CACHE, SHIM, refuse_bare_threadgroup
from .spec import DTYPES, Kernel, Value

_ABSENT = ["generic_address_space", "pipes", "program_scope_global_variables", "device_enqueue", "fp64"]
_EXTENSIONS = ",".join([*(f"-__opencl_c_{n}" for n in _ABSENT), "-cl_khr_fp64"])
_WARNINGS = "all extra shadow conversion double-promotion pre-c++17-compat no-unused-function no-missing-prototypes"
_WARNINGS += " no-sign-conversion no-sign-compare no-implicit-int-conversion no-implicit-int-float-conversion"
_WARNINGS += " no-unused-parameter"
_COMMAND = [sys.executable, "-m", "ziglang", "clang", "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc"]
_COMMAND += ["-target", "spir64-unknown-unknown", "-fsyntax-only", "-Xclang", f"-cl-ext={_EXTENSIONS}"]
_COMMAND += [f"-W{w}" for w in _WARNINGS.split()] + ["-isystem", str(SHIM), "-"]


def lint(kernel: Kernel, template: Mapping[str, Value], inputs: Sequence[text.Input]) -> str:
    """What the checker says, empty when it accepts the text.

    Args:
        kernel: The spec.
        template: Template arguments by name.
        inputs: Their sizes decide between `device` and `constant`, as in MLX.
    """
    refuse_bare_threadgroup(kernel.header + kernel.source)
    outputs = [(a.name, kernel.dtype(a, template)) for a in kernel.outputs]
    words = {"device": "__global", "constant": "__constant"}
    parameters = []
    for p in text.parameters(kernel.source, inputs, outputs):
        parameters.append("  " + " ".join(words.get(w, w) for w in p.type.split()) + f" {p.name}")
    constants = "".join(
        f"  typedef {DTYPES[v]} {n};\n"
        if isinstance(v, str)
        else f"  constexpr {'bool' if isinstance(v, bool) else 'int'} {n} = {int(v)};\n"
        for n, v in template.items()
    )
    code = (
        f'#include "msl_opencl.h"\n{kernel.header}\n#line 1 "call"\n'
        f"__kernel void {kernel.name}_lint(\n" + ",\n".join(parameters) + f") {{\n{constants}{kernel.source}\n}}\n"
    )
    key = hashlib.sha256((" ".join(_COMMAND) + (SHIM / "msl_opencl.h").read_text() + code).encode()).hexdigest()[:20]
    done = CACHE / f"{key}.lint"
    if done.exists():
        return ""
    checked = subprocess.run(_COMMAND, input=code, capture_output=True, text=True, check=False)
    if not checked.returncode and not checked.stderr:
        CACHE.mkdir(parents=True, exist_ok=True)
        done.touch()
    return checked.stderr or ("" if not checked.returncode else f"exit {checked.returncode}")
