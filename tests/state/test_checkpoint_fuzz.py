"""A slice of tools/fuzz_checkpoint.py, which runs at length under sanitizers."""

import importlib.util
from pathlib import Path

import _qwenmtp_testing as core

TOOL = Path(__file__).parent.parent.parent / "tools" / "fuzz_checkpoint.py"


def test_two_thousand_mutated_files():
    spec = importlib.util.spec_from_file_location("fuzz_checkpoint", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    counts = tool.fuzz(core, 2000, seed=1)
    assert counts.total() == 2000
    # The slice must reach every kind of check, or it guards nothing.
    for reason in ("header_digest", "file_size", "tensor_record", "payload_crc", "padding", "section", "token_id"):
        assert counts[f"corrupt/{reason}"] > 0, counts
    assert counts["accepted/forged"] > 0
