"""The retired keyed sampler: the classic law in another stream, and out of every user's reach."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import _qwenmtp_testing as core
import pytest

from qwenmtp import _core

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def receipt_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keyed_law", ROOT / "tools" / "receipts" / "keyed_law.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_receipt_shows_one_law_and_two_streams(receipt_tool: ModuleType) -> None:
    report = json.loads((ROOT / "docs" / "receipts" / "keyed-sampler.json").read_text())
    assert report["draws"] >= 8000
    assert [tuple(c["sampler"]) for c in report["cases"]] == list(receipt_tool.SAMPLERS)
    for case in report["cases"]:
        assert max(case["keyed_z"], case["classic_z"]) < report["bound_z"]
        assert case["equal_tokens"] < report["draws"]


def test_a_short_run_repeats_the_receipt(receipt_tool: ModuleType) -> None:
    case = receipt_tool.compare((0.6, 0.95, 20), 1000)
    assert max(case["keyed_z"], case["classic_z"]) < receipt_tool.BOUND
    assert case["equal_tokens"] < 1000
    # Draws of another law are seen.
    law = core.Reader(core.Params(1.0, 0.95, 20, 0.0, 0.0)).distribution(core.logits_row(1, 2, False, 64, 1.0))
    draws = core.Draws(3)
    wrong = core.Distribution(law.ids, law.mass[::-1])
    tokens = [draws.token(wrong) for _ in range(1000)]
    assert receipt_tool.normalised_chi_square(tokens, law.ids, law.mass) > receipt_tool.BOUND


def test_no_product_code_knows_it() -> None:
    assert not [name for name in dir(_core) if "keyed" in name.lower()]
    for folder in ("csrc", "python"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".h", ".cpp", ".py", ".pyi"}:
                text = path.read_text().lower()
                assert "keyedsampler" not in text, path
                assert "random::categorical" not in text, path


def test_the_extension_that_has_it_is_built_for_tests_alone() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert 'option(QWENMTP_TESTING "Build the test-only extension" OFF)' in cmake
    assert "QWENMTP_TESTING" not in (ROOT / "pyproject.toml").read_text()
