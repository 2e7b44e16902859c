"""Compiles a kernel with NVRTC for sm_90a, as MLX's CUDA back end does; no GPU needed."""

import ctypes
import hashlib
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from . import text
from .cpu import CACHE, SHIM
from .spec import METAL, Kernel, Value

_OPTIONS = [b"--device-as-default-execution-space", b"--gpu-architecture=sm_90a"]


def compile_cuda(kernel: Kernel, template: Mapping[str, Value]) -> str:
    """The compiler's log, empty when it took the text without a warning."""
    code = (SHIM / "cuda_stub.h").read_text() + text.cuda(kernel, (METAL / "cuda.h").read_text(), template)
    done = CACHE / f"{hashlib.sha256(code.encode()).hexdigest()[:20]}.nvrtc"
    if not done.exists():
        log = _compile(code)
        if log:
            return log
        CACHE.mkdir(parents=True, exist_ok=True)
        done.touch()
    return ""


@cache
def _library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia")
    assert spec, "pip install nvidia-cuda-nvrtc (extra `test`)"
    folders = [Path(p) for p in spec.submodule_search_locations or []]
    (builtins,) = [p for f in folders for p in f.glob("**/libnvrtc-builtins.so.*")]
    ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    (library,) = [p for f in folders for p in f.glob("**/libnvrtc.so.*")]
    return ctypes.CDLL(str(library))


def _compile(code: str) -> str:
    nvrtc, program = _library(), ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernel.cu", 0, None, None):
        raise RuntimeError("[nvrtc.compile] no program")
    failed = nvrtc.nvrtcCompileProgram(program, len(_OPTIONS), (ctypes.c_char_p * len(_OPTIONS))(*_OPTIONS))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode().strip() or ("failed without a log" if failed else "")
