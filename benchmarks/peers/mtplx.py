"""MTPLX 2.12.2's plain decoding on MLX's CPU back end: `mtplx.py CHECKPOINT WORK`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.remove(str(HERE))  # this file's name is the package's
ORACLE = HERE.parents[1] / "tools" / "oracle"
sys.path[:0] = [str(ORACLE / "decode"), str(ORACLE / "model")]
import mlx.core as mx  # noqa: E402
import mtplx_model  # noqa: E402
import oracle_env  # noqa: E402, F401 - lets mtplx import off macOS, clears MTPLX_*

sys.path.append(str(HERE))
from worker import Stream, serve  # noqa: E402


def opened(path: Path) -> Stream:
    """Its own loop's work a token, one forward and an argmax, without its host bookkeeping."""
    model = mtplx_model.load(path, mx.float32)

    def stream(ids: list[int]) -> Iterator[int]:
        cache, x = model.make_cache(), mx.array([ids])
        while True:
            token = mx.argmax(model(x, cache=cache)[0, -1]).item()
            yield token
            x = mx.array([[token]])

    return stream


def pack(checkpoint: Path, work: Path) -> Path:
    """Its Optimized-Speed pack, by its own converter."""
    from mtplx.commands.forge_qwen4_exp import SPEED_RECIPE, named_recipe, run_lane

    out = work / "mtplx-speed"
    if not (out / "mtp.safetensors").exists():
        run_lane(checkpoint, out, recipe=named_recipe(SPEED_RECIPE))
    return out


def main() -> None:
    checkpoint, work = Path(sys.argv[1]), Path(sys.argv[2])
    forms = {
        "float32": lambda: opened(checkpoint),
        "4-bit Speed pack, float32": lambda: opened(pack(checkpoint, work)),
    }
    serve(f"{version('mtplx')} (MLX {mx.__version__})", forms)


if __name__ == "__main__":
    main()
