"""Convert a released-layout checkpoint with mlx-vlm's own loader, quantiser and MTP splitter.

    vlm_convert.py SOURCE OUT BITS GROUP

OUT becomes the body, OUT/mtp the draft head.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mlx.core as mx
from mlx_vlm.quant_utils import quantize_model
from mlx_vlm.speculative.drafters.mtp_split import detect_mtp_splitter
from mlx_vlm.utils import load_model, save_config, save_weights, skip_multimodal_module


def main(source: Path, out: Path, bits: int, group: int) -> None:
    mx.set_default_device(mx.cpu)
    model, config = load_model(source), json.loads((source / "config.json").read_text())
    own = model.quant_predicate

    def rule(path: str, module: object) -> object:
        return False if skip_multimodal_module(path) else own(path, module)

    model, config = quantize_model(model, config, group, bits, mode="affine", quant_predicate=rule)
    save_weights(out, model, donate_weights=True)
    save_config(config, config_path=out / "config.json")
    detect_mtp_splitter(source).split(str(source), str(out / "mtp"), q_bits=bits, q_group_size=group, q_mode="affine")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
