"""Receipts: a missing or edited one is red, a probe is no speed, and the two of the demo pack equal the reference's."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qwenmtp
from qwenmtp import InvalidRequest
from qwenmtp.bench import receipts as r
from qwenmtp.bench.timing import interleaved, result

ROOT = Path(__file__).resolve().parents[2]
TOOLS, GOLDEN = ROOT / "tools" / "receipts", ROOT / "tests" / "golden" / "receipts"
DEMO = ROOT / "models" / "demo"


def run(script: str, *arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1]), **variables}
    command = [sys.executable, str(TOOLS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


@pytest.fixture
def green(tmp_path: Path) -> Path:
    """A directory with a probe, a benchmark and a check on each."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    folder = tmp_path / "receipts"
    writer = r.Receipts(folder, model, {"QWENMTP_TRACE": "x", "HOME": "/secret"}, {"commit": "abc"})
    probe = writer.add("ar", "cold", tokens=[1, 2], timing={"kind": "probe", "decode_s": 0.25})
    writer.check("ids", "pass", receipts=[probe])
    seconds = interleaved({"spin": lambda: sum(range(100))})["spin"]
    r.add_benchmarks(writer, [result("spin", seconds, work=100, unit="step")])
    assert writer.close() == []
    return folder


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / r.RECEIPTS).read_text().splitlines()]


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / r.RECEIPTS).write_text("".join(json.dumps(row) + "\n" for row in rows))


def trust(folder: Path) -> None:
    """Makes checks.json vouch for the files as they are now."""
    checks = json.loads((folder / r.CHECKS).read_text())
    checks["evidence"] = [{"file": n, "sha256": r.digest(folder / n)} for n in (r.ENVIRONMENT, r.RECEIPTS)]
    (folder / r.CHECKS).write_text(json.dumps(checks))


def test_a_directory_is_green_as_written(green: Path) -> None:
    assert r.main([str(green), "--model", str(green.parent / "model")]) == 0
    environment = json.loads((green / r.ENVIRONMENT).read_text())
    assert environment["variables"] == {"QWENMTP_TRACE": "x"}
    assert environment["model"]["artifacts"] == r.artifacts(green.parent / "model")
    assert environment["commit"] == "abc"


def test_a_missing_receipt_is_red(green: Path) -> None:
    write(green, lines(green)[1:])
    trust(green)
    assert any("missing" in text for text in r.judge(green))
    assert r.main([str(green)]) == 1


@pytest.mark.parametrize("path", [["tokens", 0], ["timing", "decode_s"], ["case"], ["started"], ["env_digest"]])
def test_an_edited_receipt_is_red(green: Path, path: list[Any]) -> None:
    rows = lines(green)
    target: Any = rows[0]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = 7
    write(green, rows)
    trust(green)
    assert any("edited" in text for text in r.judge(green))


def test_an_edited_receipt_with_a_new_hash_is_of_no_check(green: Path) -> None:
    rows = lines(green)
    rows[0]["tokens"] = [9]
    rows[0]["run_id"] = r.run_id(rows[0])
    write(green, rows)
    trust(green)
    found = r.judge(green)
    assert any("missing" in text for text in found)
    assert any("of no check" in text for text in found)


def test_a_receipt_twice_is_red(green: Path) -> None:
    write(green, [*lines(green), lines(green)[0]])
    trust(green)
    assert any("twice" in text for text in r.judge(green))


def test_receipts_in_another_order_are_red(green: Path) -> None:
    write(green, lines(green)[::-1])
    assert any("not the file that was checked" in text for text in r.judge(green))


def test_another_environment_is_red(green: Path) -> None:
    text = (green / r.ENVIRONMENT).read_text()
    (green / r.ENVIRONMENT).write_text(text.replace('"abc"', '"abd"'))
    trust(green)
    assert any("another environment" in text for text in r.judge(green))


@pytest.mark.parametrize("name", [r.ENVIRONMENT, r.RECEIPTS, r.CHECKS])
def test_a_file_that_is_gone_or_changed_is_red(green: Path, name: str) -> None:
    text = (green / name).read_text()
    (green / name).write_text(text + "\n")
    assert bool(r.judge(green)) == (name != r.CHECKS)
    (green / name).write_text(text[:-9])
    assert r.judge(green)
    (green / name).unlink()
    assert r.judge(green)


def test_a_failed_or_unexplained_check_is_red(green: Path) -> None:
    checks = json.loads((green / r.CHECKS).read_text())
    for status, reason, red in (("fail", "why", True), ("skip", "", True), ("skip", "no pack here", False)):
        checks["checks"][0] |= {"status": status, "reason": reason}
        (green / r.CHECKS).write_text(json.dumps(checks))
        assert bool(r.judge(green)) == red


def test_other_artifacts_are_red(green: Path) -> None:
    model = green.parent / "model"
    (model / "config.json").write_text("{ }")
    assert r.judge(green) == []
    assert r.judge(green, model) != []


def test_artifacts_that_change_during_the_run_are_red(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("1")
    writer = r.Receipts(tmp_path / "out", tmp_path)
    writer.check("ids", "pass", receipts=[writer.add("ar", "cold")])
    (tmp_path / "weights").write_text("2")
    assert any("artifacts" in text for text in writer.close())


def test_a_folder_is_written_once(green: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds receipts"):
        r.Receipts(green)


def test_a_probe_is_no_speed(green: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe, benchmark = lines(green)
    with pytest.raises(InvalidRequest, match="a probe says nothing about speed"):
        r.quote(probe)
    assert "step/s" in r.quote(benchmark)
    assert r.main([str(green), "--quote", probe["run_id"]]) == 1
    assert r.main([str(green), "--quote", benchmark["run_id"]]) == 0
    assert "step/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    "timing",
    [
        {"kind": "probe", "decode_s": 1.0, "tok_s": 8.0},
        {"kind": "probe", "median_s": 1.0},
        {"kind": "benchmark", "median_s": 1.0},
        {"kind": "fast"},
    ],
    ids=str,
)
def test_times_that_claim_more_than_they_are_make_a_directory_red(tmp_path: Path, timing: dict[str, Any]) -> None:
    writer = r.Receipts(tmp_path / "out")
    writer.check("ids", "pass", receipts=[writer.add("ar", "cold", timing=timing)])
    assert any("timing" in text for text in writer.close())


@pytest.mark.parametrize(("field", "value"), [("repetitions", 4), ("warmup", 0), ("interleaved", False)])
def test_a_benchmark_needs_its_repetitions(green: Path, field: str, value: Any) -> None:
    row = lines(green)[1]
    row["timing"][field] = value
    with pytest.raises(InvalidRequest):
        r.quote(row)


# ------------------------------------------------------------ the two receipts of the demo pack


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The receipt directories of the demo pack, judged against the reference's recorded rows."""
    folders = {}
    for suite, script in (("ar", "ar.py"), ("mtp", "mtp_final.py")):
        folders[suite] = tmp_path_factory.mktemp("receipts") / suite
        rows = GOLDEN / f"{suite}.jsonl.gz"
        done = run(script, DEMO, "--reference-rows", rows, "--out", folders[suite], "--dtype", "float32")
        assert done.returncode == 0, done.stdout + done.stderr
    return folders


@pytest.mark.parametrize(("suite", "count"), [("ar", 48), ("mtp", 72)])
def test_the_demo_packs_receipt_equals_the_references(written: dict[str, Path], suite: str, count: int) -> None:
    assert r.judge(written[suite], DEMO) == []
    assert len(lines(written[suite])) == count
    checks = json.loads((written[suite] / r.CHECKS).read_text())["checks"]
    assert {c["status"] for c in checks} == {"pass"}
    assert any("MTPLX 2.12.2" in c["title"] and len(c["receipts"]) == count for c in checks)


def tool(name: str) -> Any:
    """A module of tools/receipts, which is no package."""
    sys.path.insert(0, str(TOOLS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(TOOLS))


def rows_of(written: dict[str, Path]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """tools/receipts/native.py, our AR rows and the reference's, by case."""
    native = tool("native")
    return native, native.read_rows(written["ar"]), native.read_rows(GOLDEN / "ar.jsonl.gz")


def report_of(native: Any, rows: dict[str, Any], folder: Path) -> Any:
    report = native.Report("ar", r.Receipts(folder))
    for case, row in rows.items():
        report.add(
            case, {k: v for k, v in row.items() if k not in ("run_id", "schema", "started", "argv", "env_digest")}
        )
    return report


DAMAGES: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "nothing": lambda row, tensor: None,
    "token": lambda row, tensor: row["tokens"].append(row["tokens"].pop() + 1),
    "value": lambda row, tensor: tensor["sketch"].append(tensor["sketch"].pop() + 1e-4 * tensor["sketch"][0]),
    "shape": lambda row, tensor: tensor["shape"].insert(0, 1),
    "dtype": lambda row, tensor: tensor.update(dtype="bfloat16"),
    "length": lambda row, tensor: row["state"].update(N=row["state"]["N"] - 1),
    "missing tensor": lambda row, tensor: tensor.update(name="final.other"),
    "usage": lambda row, tensor: row["usage"].update(cached=row["usage"]["cached"] - 1),
    "ending": lambda row, tensor: row.update(finish="stop"),
    "prompt": lambda row, tensor: row["prompt_ids"].append(1),
    "not committed": lambda row, tensor: row.update(final=False),
}


AR, MTP = "warm T=0.6 flag=1 async resident", "ending depth 2 T=0.6 limit 5"
OWN_DAMAGES: dict[str, tuple[str, str, Callable[[dict[str, Any]], Any]]] = {
    "ar id": (AR, "change no id", lambda row: row["tokens"].append(1)),
    "ar byte": (AR, "change no id", lambda row: row["state"]["tensors"][0].update(sha256="0")),
    "ar length": (AR, "holds prompt and answer", lambda row: row["state"].update(N=3)),
    "ar not committed": (AR, "holds prompt and answer", lambda row: row.update(final=False)),
    "ar restored": (AR, "holds prompt and answer", lambda row: row["usage"].update(cached=0)),
    "ar not cancelled": (AR.replace("warm", "retry"), "cancelled", lambda row: row["notes"].update(cancelled="length")),
    "ar touched": (AR.replace("warm", "retry"), "cancelled", lambda row: row["notes"].update(state_kept="ids")),
    "ar residency": (AR, "staging on", lambda row: row["ple"].update(residency="ssd")),
    "ar staging": (AR, "staging on", lambda row: row["ple"].update(staging=False)),
    "ar retired": (AR, "retired streams", lambda row: row.update(tokens=[314, 279, 695, 47, 1, 1, 1, 1])),
    "mtp teacher": (MTP, "teacher forcing", lambda row: row["equality"].update(first_difference="mtp.keys[0]")),
    "mtp trunk": (MTP, "N - 1", lambda row: row["state"].update(N=3)),
    "mtp history": (MTP, "N - 1", lambda row: row["state"].update(H=3)),
    "mtp pending": (MTP, "N - 1", lambda row: row.update(final=False)),
    "mtp origin": (MTP, "where and why", lambda row: row.update(stop_origin="bonus")),
    "mtp short": (MTP, "where and why", lambda row: row["tokens"].pop()),
    "mtp restored": (MTP + ", warm", "all but the suffix", lambda row: row["usage"].update(cached=0)),
}


@pytest.mark.parametrize("damage", OWN_DAMAGES)
def test_what_a_receipt_claims_of_its_own_rows(written: dict[str, Path], tmp_path: Path, damage: str) -> None:
    suite = damage.split()[0]
    native, judge = tool("native"), tool({"ar": "ar", "mtp": "mtp_final"}[suite]).judge
    case, title, break_ = OWN_DAMAGES[damage]
    rows = native.read_rows(written[suite])
    break_(rows[case])
    report = report_of(native, rows, tmp_path / "out")
    geometry = {"vocab_size": 4096, "hidden_size": 1, "n_experts": 1}
    judge(report, geometry) if suite == "ar" else judge(report)
    assert report.close() == 1
    checks = json.loads((tmp_path / "out" / r.CHECKS).read_text())["checks"]
    assert title in " ".join(c["title"] for c in checks if c["status"] == "fail")


def test_the_released_pack_must_give_its_known_streams(written: dict[str, Path], tmp_path: Path) -> None:
    native, ar = tool("native"), tool("ar")
    for known in (True, False):
        rows = native.read_rows(written["ar"])
        for row in rows.values():
            row["tokens"] = ar.KNOWN[row["temperature"]] if known else row["tokens"]
        report = report_of(native, rows, tmp_path / str(known))
        ar.judge(report, ar.RELEASED)
        assert report.close() == (not known)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_difference_from_the_reference_is_red(written: dict[str, Path], tmp_path: Path, damage: str) -> None:
    native, ours, theirs = rows_of(written)
    row = theirs["warm T=0.6 flag=None sync ssd"]
    DAMAGES[damage](row, row["state"]["tensors"][-1])
    report = report_of(native, ours, tmp_path / "out")
    report.against_reference(theirs, lambda case: case.replace(" resident", " ssd"))
    assert report.close() == (damage != "nothing")


def test_a_reference_without_a_row_is_red(written: dict[str, Path], tmp_path: Path) -> None:
    native, ours, theirs = rows_of(written)
    del theirs["warm T=0.6 flag=None sync ssd"]
    report = report_of(native, ours, tmp_path / "out")
    report.against_reference(theirs, lambda case: case.replace(" resident", " ssd"))
    assert report.close() == 1


@pytest.mark.parametrize("damage", ["nothing", "token", "bytes", "row"])
def test_a_difference_from_a_baseline_is_red(written: dict[str, Path], tmp_path: Path, damage: str) -> None:
    native, ours, _ = rows_of(written)
    baseline = tmp_path / "baseline.jsonl"
    rows = lines(written["ar"])
    if damage == "token":
        rows[5]["tokens"][0] += 1
    elif damage == "bytes":
        rows[5]["state"]["tensors"][0]["sha256"] = "0"
    elif damage == "row":
        del rows[5]
    baseline.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = report_of(native, ours, tmp_path / "out")
    report.against_baseline(baseline)
    assert report.close() == (damage != "nothing")


def test_the_reference_refuses_an_enabled_pipeline(tmp_path: Path) -> None:
    done = run("reference.py", "ar", DEMO, tmp_path / "rows", MTPLX_AR_PIPELINE="1")
    assert done.returncode == 1
    assert "expected no pipeline" in done.stderr
    assert not (tmp_path / "rows").exists()
