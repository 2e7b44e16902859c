"""Writes mtplx_packs.json: digests of every tensor that MTPLX's own converter makes of a tiny checkpoint.

    python tests/golden/convert/make_convert.py        (in an environment with mtplx 2.12.2; no GPU needed)

Tensor -> [dtype, shape, first 16 hex digits of the sha256 of its bytes], for each recipe of both converters.
"""

import hashlib
import json
import struct
import sys
import tempfile
from pathlib import Path

from mtplx.commands.forge_qwen4_exp import QUALITY_RECIPE, SPEED_RECIPE, named_recipe, run_lane

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "tools" / "oracle" / "model"))
import make_tiny  # noqa: E402

MAKE = {
    "preset": "wide",
    "seed": 77,
    "overrides": {
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "vocab_size": 320,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 192,
        "shared_expert_intermediate_size": 64,
    },
}


def digests(folder):
    out = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + n for n in t["data_offsets"])
                out[name] = [t["dtype"], t["shape"], hashlib.sha256(data[begin:end]).hexdigest()[:16]]
    return out


def main():
    packs = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        make_tiny.make(source, **MAKE)
        for ours, theirs in (("optimized-speed", SPEED_RECIPE), ("optimized-quality", QUALITY_RECIPE)):
            run_lane(source, Path(folder) / ours, recipe=named_recipe(theirs))
            packs[ours] = digests(Path(folder) / ours)
    rows = ",\n".join(
        f'  "{recipe}": {{\n' + ",\n".join(f'   "{n}": {json.dumps(t)}' for n, t in sorted(p.items())) + "\n  }"
        for recipe, p in packs.items()
    )
    text = f'{{\n "make": {json.dumps(MAKE)},\n "packs": {{\n{rows}\n }}\n}}\n'
    (HERE / "mtplx_packs.json").write_text(text)


if __name__ == "__main__":
    main()
