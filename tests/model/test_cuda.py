"""The demo checkpoint on a CUDA device: every layer from kernel text, against the same model on the CPU bodies.

pytest -m cuda tests/model/test_cuda.py
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _qwenmtp_testing as testing
import numpy as np
import pytest

from qwenmtp import _core
from qwenmtp.weights import open_model_files

pytestmark = pytest.mark.cuda

os.environ["MLX_ENABLE_TF32"] = "0"  # float32 products of long prompts through MLX: in float32

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"
IDS = [(37 * i * i + 11 * i + 5) % 4096 for i in range(64)]


def load(float32: bool) -> Any:
    m = open_model_files(DEMO)
    return _core.Model(m.geometry, m.layout, m.files, m.tensors, m.quant, float32)


@pytest.fixture
def on_cpu() -> Iterator[None]:
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(mx.gpu)


def rows(model: Any) -> list[np.ndarray]:
    """Prompt, a committed window of four rows, a window of eleven, single rows, drafts; then the state."""
    sequence = testing.Sequence(model)
    out = [sequence.forward(IDS[:40])]
    out.append(sequence.forward(IDS[40:44], window=True))
    sequence.commit(2)
    out.append(sequence.forward(IDS[44:55], window=True))
    sequence.commit(9)
    out += [sequence.forward([i]) for i in IDS[55:58]]
    sequence.draft(out[0]["hyper"], IDS[1:41], append_only=True)
    out.append(sequence.draft(out[1]["hyper"][:1], IDS[41:42]))
    return [o[name] for o in out for name in ("logits", "hyper")]


@pytest.fixture
def reference(on_cpu: None) -> list[np.ndarray]:
    return rows(load(True))


def test_forwards_are_those_of_the_cpu(reference: list[np.ndarray]) -> None:
    import mlx.core as mx

    mx.set_default_device(mx.gpu)
    for got, want in zip(rows(load(True)), reference, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)  # the goldens' own tolerance in float32


def greedy(prompt: list[int]) -> list[int]:
    sequence = testing.Sequence(load(True))
    row, out = sequence.forward(prompt)["logits"][-1], []
    for _ in range(48):
        out.append(int(row.argmax()))
        row = sequence.forward([out[-1]])["logits"][-1]
    return out


@pytest.mark.parametrize("n", [1, 17, 40])
def test_greedy_stream_is_that_of_the_cpu(n: int, on_cpu: None) -> None:
    import mlx.core as mx

    want = greedy(IDS[:n])
    mx.set_default_device(mx.gpu)
    assert greedy(IDS[:n]) == want


def test_a_committed_window_has_the_bits_of_its_rows_alone() -> None:
    model = load(False)
    for n, keep in ((4, 1), (4, 4), (8, 5), (19, 11)):
        whole, alone = testing.Sequence(model), testing.Sequence(model)
        for s in (whole, alone):
            s.forward(IDS[:33])
        window = whole.forward(IDS[33 : 33 + n], window=True)["logits"]
        whole.commit(keep)
        for r in range(keep):
            np.testing.assert_array_equal(alone.forward([IDS[33 + r]])["logits"][0], window[r])
        for a, b in zip(whole.state().items(), alone.state().items(), strict=True):
            assert a[0] == b[0]
            np.testing.assert_array_equal(a[1], b[1], err_msg=f"{a[0]} after {keep} of {n}")
