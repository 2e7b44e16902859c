"""mlx-vlm 0.7.10's plain decoding on MLX's CPU back end: `vlm.py CHECKPOINT WORK`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from worker import Stream, serve

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools" / "oracle" / "model"))
import mlx.core as mx
import vlm_model
from mlx_vlm.generate.ar import generate_step


def streaming(model: Any) -> Stream:
    def stream(ids: list[int]) -> Iterator[int]:
        for token, _ in generate_step(mx.array([ids]), model, None, None, max_tokens=4096, temperature=0.0):
            yield int(token)

    return stream


def converted(checkpoint: Path, work: Path) -> Stream:
    out = work / "vlm-4bit"
    if not (out / "config.json").exists():
        out.mkdir(parents=True, exist_ok=True)
        vlm_model.convert(checkpoint, out, 4, 64)
    return streaming(vlm_model.load(out))


def main() -> None:
    checkpoint, work = Path(sys.argv[1]), Path(sys.argv[2])
    forms = {
        "float32": lambda: streaming(vlm_model.load(checkpoint)),
        "4-bit g64, float32": lambda: converted(checkpoint, work),
    }
    serve(f"{version('mlx-vlm')} (MLX {mx.__version__})", forms)


if __name__ == "__main__":
    main()
