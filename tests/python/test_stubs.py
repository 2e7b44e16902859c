"""The committed stub is the built module's."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_core_stub_is_current() -> None:
    spec = importlib.util.spec_from_file_location("stubs", ROOT / "tools" / "stubs.py")
    stubs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stubs)
    assert stubs.generated() == stubs.TARGET.read_text(), "run: python tools/stubs.py"
