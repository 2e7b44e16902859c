"""Check a pack against the reference: MTPLX loads it strictly and gives the logits of its dequantised weights.

    compare.py PACK OUT.npz --ids 5,17,151,3 --level golden    (torch environment)
    check_pack.py PACK OUT.npz                                 (MTPLX environment)

Float32 on the CPU. Prints every array's largest difference; exits 1 when a logit is off by more than 5e-5 (two
float32 implementations of the tiny models differ by 1e-5).
"""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import mtplx_model
import numpy as np

TOLERANCE = 5e-5


def main(pack: str, golden: str) -> int:
    mx.set_default_device(mx.cpu)
    want = dict(np.load(golden))
    ids, chunks = want["ids"].tolist(), want["chunks"].tolist()
    found = mtplx_model.run(mtplx_model.load(Path(pack), mx.float32), ids, chunks)
    bad = 0
    for name in sorted(found):
        off = float(np.abs(found[name].astype(np.float64) - want[name].astype(np.float64)).max())
        judged = name.endswith("logits") or name == "mtp.chain"
        bad += judged and off > TOLERANCE
        print(f"{name}: {off:.2e}{'  <-- over tolerance' if judged and off > TOLERANCE else ''}")
    print(f"{pack}: {len(ids)} tokens, {bad} of {len(found)} arrays over tolerance")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
