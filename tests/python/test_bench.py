"""What the benchmarks count: bytes through the graph, what must move at least, plots and receipts of a run."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwenmtp import Model, SamplingParams, load
from qwenmtp.bench import receipts
from qwenmtp.bench.moved import Steps, token_ids
from qwenmtp.bench.timing import Roofline
from qwenmtp.cli import main
from qwenmtp.weights import open_model_files

DEMO = str(Path(__file__).resolve().parents[2] / "models" / "demo")
N = 100  # of the context: no key slab grows in the step behind it


@pytest.fixture(scope="module")
def steps(demo: Model) -> Steps:
    return Steps(demo, N)


def names(steps: Steps, rows: int = 1, draft: bool = False) -> dict[str, tuple[int, int]]:
    return steps._session.traffic(token_ids(steps._model, N + rows)[N:], draft=draft)


def test_an_ar_step_moves_little_more_than_it_must(steps: Steps) -> None:
    least = steps.least()
    assert least < steps.moved() <= 1.15 * least


def test_least_bytes_are_weights_and_state(demo: Model, steps: Steps) -> None:
    # Counted by hand for models/demo: 13,446,408 bytes of weights a token (`qwenmtp info`); 6 delta-rule matrices of
    # 4 x 128 x 128, 6 convolution states of 3 x 1024 and one of 9 x 1024, read and written; keys and values of 2 x 256
    # and pooled keys of 128 for the context in two layers; logits. All float32.
    state = 2 * 4 * (6 * 4 * 128 * 128 + 6 * 3 * 1024 + 9 * 1024)
    keys = 2 * 4 * (N * 2 * 2 * 256 + N // 4 * 128)
    assert steps.least() == 13_446_408 + state + keys + 4 * 4096


def test_experts_count_by_those_taken(demo: Model, steps: Steps) -> None:
    one, same, other = names(steps)["moe"], names(steps, 2)["moe"], names(steps, 8)["moe"]
    g = demo.info()["geometry"]
    layers = len(g["full_attention"])
    assert one[0] == same[0] == other[0] == layers  # a node a layer, however many rows
    assert one[1] < same[1] < other[1] < 8 * one[1]  # shared parts once, some experts taken twice
    routed = sum(b for name, b in expert_bytes(demo).items())
    assert one[1] - routed * g["top_k"] // g["n_experts"] < one[1] * 0.4  # router, shared expert, rows
    assert other[1] < routed  # all experts are more than eight rows take


def expert_bytes(model: Model) -> dict[str, int]:
    from qwenmtp.inventory import inventory
    from qwenmtp.weights import open_model_files

    trunk = inventory(open_model_files(model.path))["trunk"]
    return {"experts": trunk["routed experts"].n_bytes}


def test_attention_counts_the_keys_it_reads(demo: Model) -> None:
    g = demo.info()["geometry"]
    budget = g["index_budget"]
    short, long, longer = (Steps(demo, n) for n in (budget // 2 + 4, 3 * budget + 4, 5 * budget + 4))
    read = [s._session.traffic([5])["qsa_attend"][1] for s in (short, long, longer)]
    row, layers = 2 * 4 * g["n_kv_heads"] * g["head_dim"], sum(g["full_attention"])
    assert read[1] - read[0] > layers * row * (budget // 2 - 8)  # all keys up to the budget
    pooled = layers * 4 * g["index_dim"] * (2 * budget // g["index_ratio"])
    assert read[2] - read[1] == pooled  # from there on only pooled keys
    assert abs(longer.least() - long.least() - pooled) <= 1  # rounding of the attended share


def test_a_draft_moves_the_heads_share(steps: Steps) -> None:
    assert 0.15 < steps.moved(1, draft=True) / steps.moved() < 0.35


def test_counting_leaves_the_session_as_it_was(demo: Model) -> None:
    a, b = Steps(demo, N), Steps(demo, N)
    a._session.traffic([1, 2, 3])
    a._session.traffic([1], draft=True)
    assert a._session.first_difference(b._session) is None


def test_a_bench_run_leaves_csv_plot_and_receipts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    argv = ["bench", "mtp", "--model", DEMO, "--tokens", "3", "--repeats", "5", "--json"]
    argv += ["--plot", str(tmp_path / "plots" / "mtp.png"), "--receipts", str(tmp_path / "receipts")]
    assert main(argv) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (tmp_path / "plots" / "mtp.png").read_bytes().startswith(b"\x89PNG")
    assert receipts.judge(tmp_path / "receipts", Path(DEMO)) == []
    assert report["read_bandwidth_all_threads"] > 0
    by_name = {r["name"]: r for r in report["results"]}
    assert all(r["bytes_moved"] > 0 and r["extra"]["peak memory"] > 1 << 20 for r in by_name.values())
    assert all(r["best"] <= r["median"] <= r["p90"] <= r["worst"] for r in by_name.values())
    depth = by_name["depth 2 T=0.0"]["extra"]
    assert depth["verify in steps"] > 0
    assert depth["draft in steps"] > 0
    rows = (tmp_path / "receipts" / receipts.RECEIPTS).read_text().splitlines()
    assert len(rows) == len(by_name)
    assert "tok/s" in receipts.quote(json.loads(rows[0]))


@pytest.mark.parametrize("what", ["decode", "prefill"])
def test_the_roofline_is_measured_in_turns_with_the_cases(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Roofline] = []
    real = Roofline.measure
    monkeypatch.setattr(Roofline, "measure", lambda self: [measured.append(self), real(self)])
    assert main(["bench", what, "--model", DEMO, "--tokens", "3", "--repeats", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(measured) == 1 + 3  # the warm-up's too
    assert report["read_bandwidth"] == measured[0].bandwidth[1]


def test_a_roofline_is_the_best_read_of_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    roof, clock = Roofline(1 << 16), iter([0, 4, 0, 8, 0, 2, 0, 16])
    roof._best = dict.fromkeys((1, 2), float("inf"))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    read: list[int] = []
    monkeypatch.setattr("numpy.max", lambda part: read.append(part.nbytes))
    roof.measure()
    roof.measure()
    assert roof.bandwidth == {1: (1 << 16) / 2, 2: (1 << 16) / 8}
    assert read == 2 * [1 << 16, 1 << 15, 1 << 15]


def test_the_float32_copy_holds_the_packs_values(demo: Model, tmp_path: Path) -> None:
    script = Path(DEMO).parents[1] / "benchmarks" / "bench_step.py"
    spec = importlib.util.spec_from_file_location("bench_step", script)
    assert spec is not None
    assert spec.loader is not None
    bench_step = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench_step)
    bench_step.float32_copy(open_model_files(DEMO), tmp_path)
    copied = open_model_files(tmp_path)
    assert {dtype for name, dtype, *_ in copied.tensors if not name.startswith("ngram.")} == {"F32", "I64"}
    assert copied.quant.keys() == {"ngram"}
    assert bench_step.weight_bytes(tmp_path) == pytest.approx(46.8e6, rel=0.01)  # issue 7
    with load(tmp_path, dtype="float32") as dense:
        ends = []
        for model in (dense, demo):
            session = model.session(mode="ar")
            list(session.generate([5, 6, 7], SamplingParams(temperature=0), max_tokens=12, ignore_stop=True))
            ends.append((session.ids, session.export()["final.logits"].array))
    assert ends[0][0] == ends[1][0]
    np.testing.assert_allclose(ends[0][1], ends[1][1], rtol=0, atol=1e-4 * np.abs(ends[1][1]).max())  # order of sums
