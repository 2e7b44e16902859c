"""Checkpoints in the released layout that the tests make, and what they read back."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from qwenmtp.safetensors_io import FileWriter, read_header

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests/golden/convert/mtplx_packs.json").read_text())
SHARD = "model-00001-of-00002.safetensors"
PLE = "model.language_model.layers.1.ple.ple_embedding."
EIGHT_BITS_OR_MORE = ("router", "hyper", "ple", "mtp_router", "mtp_hyper", "mtp_fc")
GATE = "language_model.model.layers.0.mlp.gate"

spec = importlib.util.spec_from_file_location("make_tiny", ROOT / "tools/oracle/model/make_tiny.py")
assert spec
assert spec.loader
make_tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_tiny)


def tensors(folder: Path) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, info in read_header(path)[0].items():
            data = path.read_bytes()[info.offset : info.offset + info.n_bytes]
            out[name] = [info.dtype, list(info.shape), hashlib.sha256(data).hexdigest()[:16]]
    return out


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder; bf16 as ml_dtypes."""
    out = {}
    for path in folder.glob("*.safetensors"):
        for name, a in mx.load(str(path)).items():
            bf16 = a.dtype == mx.bfloat16
            out[name] = np.array(a.view(mx.uint16)).view(ml_dtypes.bfloat16) if bf16 else np.array(a)
    return out


def write_release(folder: Path, config: dict[str, Any], parts: dict[str, np.ndarray]) -> None:
    """A one-file checkpoint of arrays of any type, without an index."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    types = {np.dtype(ml_dtypes.bfloat16): "BF16", np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3"}
    types |= {np.dtype(np.int64): "I64", np.dtype(np.float32): "F32"}
    with FileWriter(folder / "model.safetensors", {n: (types[a.dtype], a.shape) for n, a in parts.items()}, {}) as file:
        for name, a in parts.items():
            file.write(name, 0, a)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def edit_header(path: Path, change: Any) -> None:
    """Rewrites a file's header through `change(header)`, its payload as it was."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def run_python(code: str, *args: Path) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], env=paths, capture_output=True, text=True, check=False
    )
