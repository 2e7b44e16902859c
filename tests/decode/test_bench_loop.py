"""`qwenmtp bench loop` measures every case and names the slower dtype's numbers."""

import json

import numpy as np
import pytest

from qwenmtp.bench import loop as bench
from qwenmtp.cli import main


def test_json_carries_the_contracts_fields(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "VOCAB", 4096)
    assert main(["bench", "loop", "--json", "--repeats", "1"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    us = {case["name"]: 1e6 * case["median"] for case in results["cases"]}
    assert set(us) == {f"{kind} {d}" for kind in ("ar token", "round") for d in ("float32", "bfloat16")}
    assert results["ar_us_per_token"] == max(us["ar token float32"], us["ar token bfloat16"])
    assert results["round_depth3_us"] == max(us["round float32"], us["round bfloat16"])


@pytest.mark.parametrize("dtype", bench.DTYPES)
def test_a_round_reads_seven_rows_and_a_token_one(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    made = bench.null_decoder

    def recorded(*args: object) -> object:
        seen.append(made(*args))
        return seen[-1]

    monkeypatch.setattr(bench, "null_decoder", recorded)
    rows = bench.in_dtype(np.random.default_rng(0).standard_normal((8, 512)).astype(np.float32) * 4, dtype)
    bench.measure(rows, speculate=True, seed=0)
    bench.measure(rows, speculate=False, seed=0)
    rounds, plain = (d.statistics for d in seen)
    # The null head agrees with the null trunk: three drafts, three tests, one bonus; the last round fills the limit.
    assert rounds["accepted_drafts"] == rounds["drafted_tokens"] == 3 * rounds["verify_calls"]
    assert rounds["bonus_tokens"] == rounds["verify_calls"] - 1
    assert plain["verify_calls"] == bench.TOKENS - 1
