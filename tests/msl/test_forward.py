"""The demo model from kernel text alone: every launch of a forward on checked CPU threads."""

from pathlib import Path

import _qwenmtp_testing as testing
import numpy as np
import pytest
from msl.harness import launcher

from qwenmtp import _core
from qwenmtp.weights import open_model_files

DEMO = Path(__file__).parents[2] / "models" / "demo"
IDS = [7, 1033, 4, 0, 96, 5, 2000, 17, 3, 3, 911, 64]


def rows(model: object) -> list[np.ndarray]:
    """Logits of a prompt, of a window of four rows, of the row behind its two kept ones, and a draft's."""
    sequence = testing.Sequence(model)
    out = [sequence.forward(IDS[:5])]
    out.append(sequence.forward(IDS[5:9], window=True))
    sequence.commit(2)
    out.append(sequence.forward(IDS[9:10]))
    sequence.draft(out[0]["hyper"], IDS[1:6], append_only=True)
    out.append(sequence.draft(out[1]["hyper"][:1], IDS[6:7]))
    return [o[name] for o in out for name in ("logits", "hyper")]


@pytest.mark.slow
@pytest.mark.skipif(not DEMO.is_dir(), reason="needs models/demo")
def test_the_demo_model_runs_from_text() -> None:
    m = open_model_files(DEMO)
    model = _core.Model(m.geometry, m.layout, m.files, m.tensors, m.quant, True)
    want = rows(model)
    with launcher.text():
        got = rows(model)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)  # the goldens' own tolerance in float32
