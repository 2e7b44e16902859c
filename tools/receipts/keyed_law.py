"""Write docs/receipts/keyed-sampler.json: the retired keyed sampler has the classic sampler's law, in another stream.

python tools/receipts/keyed_law.py [DRAWS]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))  # behind an installed one
import _qwenmtp_testing as core

ROOT = Path(__file__).resolve().parents[2]

SAMPLERS = ((0.6, 0.95, 20), (1.0, 0.95, 20), (0.5, 1.0, 2), (1.3, 0.999, 40))
VOCAB = 64
# 99.9 % point of the standard normal that the cube root of chi-square / dof approaches (Wilson and Hilferty).
BOUND = 3.09


def normalised_chi_square(tokens: list[int], ids: list[int], mass: list[float]) -> float:
    """Of the draws against the exact masses; cells of fewer than five expected draws are pooled."""
    expected = np.array(mass) * len(tokens)
    seen = np.array([tokens.count(i) for i in ids], float)
    if seen.sum() != len(tokens):
        return float("inf")
    rare = expected < 5
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        seen = np.append(seen[~rare], seen[rare].sum())
    dof = len(expected) - 1
    chi2 = float(((seen - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    return float(((chi2 / dof) ** (1 / 3) - (1 - 2 / (9 * dof))) / np.sqrt(2 / (9 * dof)))


def compare(sampler: tuple[float, float, int], draws: int) -> dict[str, Any]:
    """Both samplers on one row."""
    row = core.logits_row(0x243F6A8885A308D3, 77, False, VOCAB, 1.0)
    params = core.Params(*sampler, 0.0, 0.0)
    law = core.Reader(params).distribution(row)
    keyed_sampler, classic_draws = core.KeyedSampler(11, params), core.Draws(11)
    keyed = [keyed_sampler.token(row) for _ in range(draws)]
    classic = [classic_draws.token(law) for _ in range(draws)]
    return {
        "sampler": sampler,
        "support": len(law.ids),
        "keyed_z": round(normalised_chi_square(keyed, law.ids, law.mass), 3),
        "classic_z": round(normalised_chi_square(classic, law.ids, law.mass), 3),
        "equal_tokens": sum(a == b for a, b in zip(keyed, classic, strict=True)),
    }


def main(draws: int) -> None:
    cases = [compare(sampler, draws) for sampler in SAMPLERS]
    report = {"draws": draws, "vocabulary": VOCAB, "bound_z": BOUND, "cases": cases}
    path = ROOT / "docs" / "receipts" / "keyed-sampler.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
