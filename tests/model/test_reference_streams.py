"""Token streams of the PyTorch reference: draft chains of every depth, greedy text of the demo checkpoint."""

import json
from pathlib import Path
from typing import Any

import _qwenmtp_testing as testing
import numpy as np
import pytest

from .conftest import GOLDEN, load

ROOT = Path(__file__).resolve().parents[2]
CHAINS = json.loads((GOLDEN.parent / "mtp_chain" / "cases.json").read_text())
STREAMS = {p["name"]: p for p in json.loads((GOLDEN.parent / "demo_greedy.json").read_text())["prompts"]}
DEMO = ROOT.parent / "shared" / "demo-model"


def chain(sequence: Any, ids: list[int], depth: int) -> tuple[list[int], np.ndarray]:
    """Greedy drafts after the prompt's history rows, and their logits."""
    rows = sequence.forward(ids)
    wide, token = rows["hyper"], int(rows["logits"][-1].argmax())
    if len(ids) > 1:
        sequence.draft(wide[:-1], ids[1:])
    tokens, logits, wide = [], [], wide[-1:]
    for _ in range(depth):
        step = sequence.draft(wide, [token])
        wide, token = step["hyper"], int(step["logits"][-1].argmax())
        tokens.append(token)
        logits.append(step["logits"][-1])
    return tokens, np.stack(logits)


@pytest.mark.parametrize("label", CHAINS)
def test_draft_chain_of_depth_one_to_five_is_the_reference(label: str) -> None:
    """A chain's first k tokens are the chain of depth k."""
    case = CHAINS[label]
    with np.load(GOLDEN.parent / "mtp_chain" / "chains.npz") as data:
        want, want_logits = data[f"{label}.chain"], data[f"{label}.chain_logits"]
    got, got_logits = chain(testing.Sequence(load(GOLDEN / case["checkpoint"], True)), case["ids"], 5)
    assert got == want.tolist()
    np.testing.assert_allclose(got_logits, want_logits, rtol=0, atol=1e-4)  # float32 over two frameworks


@pytest.mark.skipif(not DEMO.is_dir(), reason="needs the demo checkpoint beside the repository")
@pytest.mark.parametrize("name", ["long", "eos_runs", "chat"])
def test_greedy_stream_of_the_demo_checkpoint_is_the_reference(name: str) -> None:
    stream = STREAMS[name]
    sequence = testing.Sequence(load(DEMO, True))
    row, got = sequence.forward(stream["ids"])["logits"][-1], []
    for _ in stream["greedy_ids"]:
        got.append(int(row.argmax()))
        row = sequence.forward([got[-1]])["logits"][-1]
    assert got == stream["greedy_ids"]
