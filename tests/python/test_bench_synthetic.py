"""Packs of random weights: the released shapes (here far smaller), opened by the ordinary loader."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qwenmtp
from qwenmtp.bench import synthetic
from qwenmtp.cli import main
from qwenmtp.safetensors_io import read_header, read_rows
from qwenmtp.table import ngram_hash
from qwenmtp.weights import open_model_files

SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 128, "max_position_embeddings": 4096, "num_attention_heads": 4, "head_dim": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "moe_intermediate_size": 64, "num_experts": 8,
    "shared_expert_intermediate_size": 64, "num_experts_per_tok": 2, "ngram_vocab_size_base": 500, "eos_token_id": 0,
    "hc_lowrank": 64, "indexer_budget": 256,
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(synthetic.MODELS, "flash-next", synthetic.FLASH_NEXT | SMALL)


def bench(what: str, tmp_path: Path, *more: str) -> int:
    argv = ["bench", what, "--synthetic", "flash-next", "--tokens", "6", "--repeats", "1", "--dir", str(tmp_path)]
    return main([*argv, *more])


def pack(tmp_path: Path, layers: int = 4) -> Path:
    assert bench("prefill", tmp_path, "--layers", str(layers)) == 0
    return tmp_path / f"flash-next-{layers}"


@pytest.mark.parametrize("what", ["decode", "prefill", "mtp"])
def test_it_is_measured_as_any_model(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(what, tmp_path, "--json", "--csv", str(tmp_path / "rows.csv")) == 0
    cases = json.loads(capsys.readouterr().out)["results"]
    assert all(c["rate"] > 0 and c["bytes_moved"] > 0 for c in cases)
    assert "bench " + what + " --synthetic flash-next --layers 4" in (tmp_path / "rows.csv").read_text()


def test_shapes_are_the_models_first_layers(tmp_path: Path) -> None:
    files = open_model_files(pack(tmp_path, layers=5))
    assert files.layout == "pack"
    assert files.geometry["full_attention"] == [False, False, False, True, False]
    assert files.geometry["ple_layers"] == [1]
    shapes = {name: shape for name, _, shape, *_ in files.tensors}
    assert shapes["language_model.model.layers.3.mlp.switch_mlp.up_proj.weight"] == (8, 64, 128 * 4 // 32)
    assert files.quant[""] == (4, 64)
    assert "mtp.layers.0.self_attn.q_proj.weight" in shapes
    assert shapes["ngram.weight"][0] % 128 == 0


def test_codes_are_random_and_values_have_the_variance_of_a_trained_matrix(tmp_path: Path) -> None:
    tensors, _ = read_header(pack(tmp_path) / "model.safetensors")
    at = "language_model.model.layers.0.linear_attn.in_proj_qkv."
    words, scales, biases = (
        read_rows(tensors[at + part], 0, tensors[at + part].n_rows) for part in ("weight", "scales", "biases")
    )
    codes = np.stack([words & 15, words >> 4], -1).reshape(len(words), -1)
    assert codes.std() == pytest.approx(np.sqrt((16**2 - 1) / 12), rel=0.05)
    assert np.unique(codes).size == 16
    assert len(np.unique(words, axis=0)) == len(words)
    scale, bias = (np.repeat((b.view("<u2").astype("<u4") << 16).view("<f4"), 64, 1) for b in (scales, biases))
    values = scale * codes + bias
    assert values.std() == pytest.approx(128**-0.5, rel=0.05)
    assert abs(values.mean()) < 0.02 * values.std()


def test_the_table_is_a_hole_under_the_hash_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=20_000_000))
    synthetic.MODELS["flash-next"] |= {"ngram_vocab_size_base": 100_000}  # 16 heads of it, 16 bytes a row
    folder = pack(tmp_path)
    table = (folder / "ngram-table.safetensors").stat()
    assert table.st_size > 25_000_000
    assert table.st_blocks * 512 < 1_000_000
    tensors, _ = read_header(folder / "model.safetensors")
    at = "language_model.model.layers.1.ple.ple_embedding."
    constants = ngram_hash(100_000, 512)
    for name, key in {
        "layer_multipliers": "multipliers", "ngram_heads_vocab_sizes": "sizes", "ngram_heads_offsets": "offsets"
    }.items():  # fmt: skip
        assert read_rows(tensors[at + name], 0, 1).view("<i8")[0].tolist() == constants[key]


def test_tokens_differ_and_nothing_overflows(tmp_path: Path) -> None:
    with qwenmtp.load(pack(tmp_path), dtype="float32") as model:
        session = model.session(mode="ar")
        params = qwenmtp.SamplingParams(temperature=0)
        ids = [i for r in session.generate([1, 2, 3], params, max_tokens=40, ignore_stop=True) for i in r.ids]
        logits = session.export()["final.logits"].array
    assert len(set(ids)) > 5
    assert np.isfinite(logits).all()
    assert 0.01 < logits.std() < 100


def test_a_kept_pack_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path) / "config.json"
    before = path.stat().st_mtime_ns
    pack(tmp_path)
    assert path.stat().st_mtime_ns == before
    monkeypatch.setitem(synthetic.MODELS, "flash-next", synthetic.FLASH_NEXT | SMALL | {"num_experts": 16})
    assert bench("prefill", tmp_path) == 2


def test_a_temporary_pack_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["bench", "prefill", "--synthetic", "flash-next", "--tokens", "6", "--repeats", "1"]) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layers", ["1", "49"])
def test_layers_are_those_of_the_model_with_its_ngram_layer(
    layers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("prefill", tmp_path, "--layers", layers) == 2
    assert "expected 2..48" in capsys.readouterr().err


def test_what_does_not_fit_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(synthetic, "physical_budget", lambda: 1_000_000)
    assert bench("prefill", tmp_path) == 4
    assert "fewer --layers" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setitem(synthetic.MODELS, "flash-next", synthetic.FLASH_NEXT | SMALL)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    assert bench("prefill", tmp_path) == 3
    assert "1,000,000 are free" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_benchmarks_without_a_model_refuse_it(tmp_path: Path) -> None:
    assert bench("loop", tmp_path) == 2
