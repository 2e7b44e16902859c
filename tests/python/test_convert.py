"""convert: the bytes of MTPLX's own converter, every way a release can be stored, and nothing left of a failed run."""

import argparse
import errno
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from qwenmtp.convert import BUILT_IN, command, convert, load_recipe, pack
from qwenmtp.convert.recipe import BITS, FLOORS
from qwenmtp.errors import ConfigError, InvalidRequest, IoError, ModelFormatError
from qwenmtp.safetensors_io import FileWriter, read_header, read_rows

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests/golden/convert/mtplx_packs.json").read_text())
SHARD = "model-00001-of-00002.safetensors"
PLE = "model.language_model.layers.1.ple.ple_embedding."
EIGHT_BITS_OR_MORE = ("router", "hyper", "ple", "mtp_router", "mtp_hyper", "mtp_fc")
GATE = "language_model.model.layers.0.mlp.gate"

spec = importlib.util.spec_from_file_location("make_tiny", ROOT / "tools/oracle/model/make_tiny.py")
assert spec
assert spec.loader
make_tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_tiny)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of the goldens; tests do not write into it."""
    folder = tmp_path_factory.mktemp("tiny") / "release"
    make_tiny.make(folder, **GOLDEN["make"])
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "README.md").write_text("of the release")
    return folder


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(tiny, tmp_path / "release"))


def tensors(folder: Path) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, info in read_header(path)[0].items():
            data = path.read_bytes()[info.offset : info.offset + info.n_bytes]
            out[name] = [info.dtype, list(info.shape), hashlib.sha256(data).hexdigest()[:16]]
    return out


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder; bf16 as ml_dtypes."""
    out = {}
    for path in folder.glob("*.safetensors"):
        for name, a in mx.load(str(path)).items():
            bf16 = a.dtype == mx.bfloat16
            out[name] = np.array(a.view(mx.uint16)).view(ml_dtypes.bfloat16) if bf16 else np.array(a)
    return out


def write_release(folder: Path, config: dict[str, Any], parts: dict[str, np.ndarray]) -> None:
    """A one-file checkpoint of arrays of any type, without an index."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    types = {np.dtype(ml_dtypes.bfloat16): "BF16", np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3"}
    types |= {np.dtype(np.int64): "I64", np.dtype(np.float32): "F32"}
    with FileWriter(folder / "model.safetensors", {n: (types[a.dtype], a.shape) for n, a in parts.items()}, {}) as file:
        for name, a in parts.items():
            file.write(name, 0, a)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def edit_header(path: Path, change: Any) -> None:
    """Rewrites a file's header through `change(header)`, its payload as it was."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


# ---------------------------------------------------------------------- what is written
@pytest.mark.parametrize("recipe", GOLDEN["packs"])
def test_every_tensor_has_the_bytes_of_mtplx(recipe: str, tiny: Path, tmp_path: Path) -> None:
    convert(tiny, tmp_path / "pack", recipe)
    assert tensors(tmp_path / "pack") == GOLDEN["packs"][recipe]


def test_shards_and_blocks_change_no_tensor(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "SHARD_BYTES", 200_000)
    monkeypatch.setattr(pack, "BLOCK_VALUES", 1_000)
    convert(tiny, tmp_path / "pack", "optimized-speed")
    assert tensors(tmp_path / "pack") == GOLDEN["packs"]["optimized-speed"]
    index = json.loads((tmp_path / "pack/model.safetensors.index.json").read_text())
    shards = sorted((tmp_path / "pack").glob("model-*.safetensors"))
    assert len(shards) > 3
    assert index["weight_map"] == {n: p.name for p in shards for n in sorted(read_header(p)[0])}


def test_config_and_files_are_those_of_a_pack(tiny: Path, tmp_path: Path) -> None:
    report = convert(tiny, tmp_path / "pack", "optimized-speed")
    config = config_of(tmp_path / "pack")
    rules = config["quantization"]
    assert config["quantization_config"] == rules
    assert config["text_config"] == {**config_of(tiny)["text_config"], "ngram_sidecar": True}
    assert config["mlx_lm_extra_tensors"] == {"mtp_file": "mtp.safetensors", "ngram_file": "ngram-table.safetensors"}
    assert config["mtplx_recipe"]["name"] == "optimized-speed"
    assert {k: rules[k] for k in ("bits", "group_size", "mode")} == {"bits": 4, "group_size": 32, "mode": "affine"}
    assert rules[GATE] == {"bits": 8, "group_size": 64, "mode": "affine"}
    assert not any("switch_mlp" in path or path.startswith("mtp.") for path in rules)
    # Every quantised body module is read back with the width its shapes have.
    body = read_header(tmp_path / "pack/model.safetensors")[0]
    for name in (n for n in body if n.endswith(".scales")):
        rule = rules.get(name.removesuffix(".scales"), rules)
        words, groups = body[name.replace(".scales", ".weight")].shape[-1], body[name].shape[-1]
        assert words * 32 == groups * rule["group_size"] * rule["bits"], name
    header, metadata = read_header(tmp_path / "pack/ngram-table.safetensors")
    rows = header["ngram.weight"].shape[0]
    assert metadata == {"ngram_bits": "4", "ngram_group_size": "32", "rows": str(rows), "dim": "32"}
    index = json.loads((tmp_path / "pack/model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(body)
    assert index["metadata"]["total_size"] == sum(t.n_bytes for t in body.values())
    assert set(report.files) == {p.name for p in (tmp_path / "pack").iterdir()}
    assert {"tokenizer.json", "chat_template.jinja"} <= set(report.files)
    assert "README.md" not in report.files


def test_report_adds_up(tiny: Path, tmp_path: Path) -> None:
    report = convert(tiny, tmp_path / "pack", "bare-speed")
    every = {n: t for p in (tmp_path / "pack").glob("*.safetensors") for n, t in read_header(p)[0].items()}
    assert sum(c.bytes for c in report.classes) == sum(t.n_bytes for t in every.values())
    assert sum(c.modules for c in report.classes) == sum(not n.endswith(("scales", "biases")) for n in every)
    assert report.bytes == sum(p.stat().st_size for p in (tmp_path / "pack").iterdir())
    assert {c.cls: c.width for c in report.classes if c.cls in ("router", "hyper")} == {
        "router": "8/g64",
        "hyper": "bf16",
    }
    assert json.loads(json.dumps(report.to_json()))["bytes"] == report.bytes
    assert f"{report.bytes:,} bytes" in str(report)


def test_progress_counts_every_byte_once(tiny: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    report = convert(tiny, tmp_path / "pack", "optimized-speed", progress=lambda *call: calls.append(call))
    assert [done for done, _, _ in calls] == sorted({done for done, _, _ in calls})
    assert {total for _, total, _ in calls} == {calls[-1][0]} == {sum(c.bytes for c in report.classes)}


@pytest.mark.parametrize("bits", BITS)
def test_codes_of_every_width_give_the_weights_back(bits: int, tiny: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"classes": {"attention": {"bits": bits, "group_size": 128}}}))
    convert(tiny, tmp_path / "pack", recipe)
    ours, release = arrays(tmp_path / "pack"), arrays(tiny)
    name = "language_model.model.layers.2.self_attn.q_proj"
    want = release["model.language_model.layers.2.self_attn.q_proj.weight"].astype(np.float64)
    bit = np.unpackbits(ours[f"{name}.weight"].view(np.uint8), axis=-1, bitorder="little")
    codes = bit.reshape(len(bit), -1, bits) @ (1 << np.arange(bits))
    scales = ours[f"{name}.scales"].astype(np.float64).repeat(128, 1)
    found = codes * scales + ours[f"{name}.biases"].astype(np.float64).repeat(128, 1)
    # Rounding to a grid costs 12**-0.5 = 0.29 steps; MLX moves the grid to meet zero, which clips an edge. Codes of
    # another column would cost more than one step.
    assert np.sqrt(np.mean(((found - want) / scales) ** 2)) < 0.5


# ---------------------------------------------------------------------- how a release can be stored
def test_numbered_and_turned_experts_give_the_same_pack(tiny: Path, tmp_path: Path) -> None:
    numbered, turned = {}, {}
    for name, a in arrays(tiny).items():
        numbered[name] = turned[name] = a
        if ".experts." in name:
            turned[name] = np.ascontiguousarray(a.swapaxes(1, 2))
            halves = np.split(a, 2, axis=1) if name.endswith("gate_up_proj") else [a]
            head = name.rsplit(".", 1)[0]
            for half, part in zip(halves, ["gate_proj", "up_proj"] if len(halves) > 1 else ["down_proj"], strict=True):
                numbered |= {f"{head}.{e}.{part}.weight": m for e, m in enumerate(half)}
            del numbered[name]
    for kind, parts in (("numbered", numbered), ("turned", turned)):
        write_release(tmp_path / kind, config_of(tiny), parts)
        convert(tmp_path / kind, tmp_path / f"{kind}-pack", "optimized-speed")
        assert tensors(tmp_path / f"{kind}-pack") == GOLDEN["packs"]["optimized-speed"], kind


@pytest.mark.parametrize("inner", [64, 128], ids=["square gate_up", "square down"])
def test_a_square_expert_tensor_is_decided_by_the_other(inner: int, tmp_path: Path) -> None:
    text = {**make_tiny.TEXT_DEFAULTS, **make_tiny.WIDE, **GOLDEN["make"]["overrides"]}
    text |= {"num_hidden_layers": 3, "moe_intermediate_size": inner}
    plain = {n: a if a.dtype == np.int64 else a.astype(ml_dtypes.bfloat16) for n, a in make_tiny.build(text, 3).items()}
    turned = {n: np.ascontiguousarray(a.swapaxes(1, 2)) if ".experts." in n else a for n, a in plain.items()}
    for kind, parts in (("plain", plain), ("turned", turned)):
        write_release(tmp_path / kind, {"model_type": "qwen4_exp", "text_config": text}, parts)
        convert(tmp_path / kind, tmp_path / f"{kind}-pack", "bare-speed")
    assert tensors(tmp_path / "plain-pack") == tensors(tmp_path / "turned-pack")


def test_fp8_release_gives_the_pack_of_its_bf16_values(tiny: Path, tmp_path: Path) -> None:
    """E4M3 x scale, rounded to bf16, then as any bf16 release: experts by 128 x 128 blocks, the table by one scale."""
    rng = np.random.default_rng(5)
    e4m3, bf16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
    fp8, plain = {}, {}
    for name, a in arrays(tiny).items():
        if ".experts." in name:
            halves = np.split(a, 2, axis=1) if name.endswith("gate_up_proj") else [a]
            head, products = name.rsplit(".", 1)[0], []
            for half, part in zip(halves, ["gate_proj", "up_proj"] if len(halves) > 1 else ["down_proj"], strict=True):
                codes = (half.astype(np.float32) * 100).astype(e4m3)
                rows, columns = (-(-n // 128) for n in half.shape[1:])
                scale = rng.uniform(0.005, 0.02, (len(half), rows, columns)).astype(bf16)
                grown = scale.astype(np.float32).repeat(128, 1).repeat(128, 2)[:, : half.shape[1], : half.shape[2]]
                products.append((codes.astype(np.float32) * grown).astype(bf16))
                for e in range(len(half)):
                    fp8[f"{head}.{e}.{part}.weight"] = codes[e]
                    fp8[f"{head}.{e}.{part}.weight_scale_inv"] = scale[e]
            plain[name] = np.concatenate(products, axis=1)
        elif ".shard_" in name:
            fp8[name] = (a.astype(np.float32) * 50).astype(e4m3)
            plain[name] = (fp8[name].astype(np.float32) * np.float32(bf16(0.0199))).astype(bf16)
        else:
            fp8[name] = plain[name] = a
    fp8[f"{PLE}ngram_embedding.weight_scale"] = np.array(0.0199, bf16)
    config = config_of(tiny)
    write_release(tmp_path / "fp8", {**config, "quantization_config": {"quant_method": "fp8"}}, fp8)
    write_release(tmp_path / "plain", config, plain)
    for kind in ("fp8", "plain"):
        convert(tmp_path / kind, tmp_path / f"{kind}-pack", "optimized-speed")
    assert tensors(tmp_path / "fp8-pack") == tensors(tmp_path / "plain-pack")
    assert config_of(tmp_path / "fp8-pack") == config_of(tmp_path / "plain-pack")


def test_float32_release_keeps_only_a_log_wide(tmp_path: Path) -> None:
    make_tiny.make(tmp_path / "release", dtype="f32", **GOLDEN["make"])
    convert(tmp_path / "release", tmp_path / "pack", "optimized-speed")
    ours, golden = tensors(tmp_path / "pack"), GOLDEN["packs"]["optimized-speed"]
    assert {n.rsplit(".", 1)[1] for n, t in ours.items() if t[0] == "F32"} == {"A_log"}
    # make_tiny rounds once to bf16 for the golden; bf16(1 + w) of the wide w may differ in the last bit.
    rounded_once = [n for n in golden if "norm" not in n and not n.endswith("A_log")]
    assert {n: ours[n] for n in rounded_once} == {n: golden[n] for n in rounded_once}


def test_vision_is_left_out_and_a_missing_head_leaves_no_file(tiny: Path, tmp_path: Path) -> None:
    parts = {n: a for n, a in arrays(tiny).items() if not n.startswith("mtp.")}
    parts["model.visual.patch.weight"] = np.zeros((3, 5), ml_dtypes.bfloat16)
    write_release(tmp_path / "release", config_of(tiny), parts)
    report = convert(tmp_path / "release", tmp_path / "pack", "optimized-speed")
    assert report.vision_bytes_left_out == 30
    assert "mtp.safetensors" not in report.files
    assert config_of(tmp_path / "pack")["mlx_lm_extra_tensors"] == {"ngram_file": "ngram-table.safetensors"}
    golden = GOLDEN["packs"]["optimized-speed"]
    assert tensors(tmp_path / "pack") == {n: t for n, t in golden.items() if not n.startswith("mtp.")}


def test_rows_the_group_does_not_divide_are_narrowed_and_reported(tiny: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    eight = {"bits": 8, "group_size": 64}
    recipe.write_text(json.dumps({"classes": {"table": eight, "hyper": eight}}))
    report = convert(tiny, tmp_path / "pack", recipe)
    assert any("ngram.weight" in line and "8/g32 instead of 8/g64" in line for line in report.narrowed)
    assert any("input_mix_weight_up" in line and "bf16 instead of 8/g64" in line for line in report.narrowed)
    assert read_header(tmp_path / "pack/ngram-table.safetensors")[1]["ngram_group_size"] == "32"
    down = "language_model.model.layers.0.attn_hyper_connection.input_mix_weight_down"
    assert config_of(tmp_path / "pack")["quantization"][down] == {**eight, "mode": "affine"}
    assert tensors(tmp_path / "pack")[down.replace("_down", "_up") + ".weight"][0] == "BF16"


def test_bf16_table_says_zero_bits(tiny: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"classes": {"table": "bf16"}}))
    convert(tiny, tmp_path / "pack", recipe)
    header, metadata = read_header(tmp_path / "pack/ngram-table.safetensors")
    assert (list(header), metadata["ngram_bits"]) == (["ngram.weight"], "0")
    release = arrays(tiny)
    shards = [release[f"{PLE}ngram_embedding.shard_{i}.weight"] for i in range(4)]
    assert (arrays(tmp_path / "pack")["ngram.weight"] == np.concatenate(shards)).all()


# ---------------------------------------------------------------------- recipes
@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ([], "object"),
        ({"clases": {}}, "clases"),
        ({"name": ""}, "name"),
        ({"extends": "quick"}, "quick"),
        ({"classes": []}, "classes"),
        ({"classes": {"experts": "bf16"}}, "experts"),
        ({"classes": {"attention": "fp16"}}, "classes.attention"),
        ({"classes": {"attention": {"bits": 4}}}, "classes.attention"),
        ({"classes": {"attention": {"bits": 7, "group_size": 64}}}, "classes.attention.bits"),
        ({"classes": {"attention": {"bits": 4.0, "group_size": 64}}}, "classes.attention.bits"),
        ({"classes": {"attention": {"bits": 4, "group_size": 48}}}, "classes.attention.group_size"),
        *[({"classes": {c: {"bits": 6, "group_size": 64}}}, f"classes.{c}.bits") for c in EIGHT_BITS_OR_MORE],
    ],
)
def test_a_recipe_that_is_not_legal_names_its_key(spec: Any, named: str, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(spec))
    with pytest.raises(ConfigError, match=named):
        convert(tiny, tmp_path / "pack", path)
    assert names(tmp_path) == ["recipe.json"]


def test_an_unknown_recipe_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bare-speed, optimized-speed, optimized-quality"):
        load_recipe("optimised-speed")
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load_recipe(tmp_path / "recipe.json")


def test_a_recipe_file_changes_only_its_classes(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"extends": "bare-speed", "classes": {"lm_head": {"bits": 6, "group_size": 32}}}))
    recipe = load_recipe(path)
    assert recipe.name == "mine"
    assert {c for c in FLOORS if recipe.widths[c] != BUILT_IN["bare-speed"].widths[c]} == {"lm_head"}
    assert str(recipe.widths["lm_head"]) == "6/g32"
    path.write_text(json.dumps(recipe.to_dict()))
    assert load_recipe(path) == recipe


# ---------------------------------------------------------------------- bad input
def damage(kind: str, folder: Path) -> None:
    shard, config = folder / SHARD, config_of(folder)
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    if kind == "no folder":
        shutil.rmtree(folder)
    elif kind == "no config":
        (folder / "config.json").unlink()
    elif kind == "config is not JSON":
        (folder / "config.json").write_text("{")
    elif kind == "config is a list":
        (folder / "config.json").write_text("[]")
    elif kind == "other model":
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen3"}))
    elif kind == "no text_config":
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen4_exp"}))
    elif kind == "no hidden_size":
        del config["text_config"]["hidden_size"]
        (folder / "config.json").write_text(json.dumps(config))
    elif kind == "layer type":
        config["text_config"]["layer_types"][0] = "sliding_attention"
        (folder / "config.json").write_text(json.dumps(config))
    elif kind == "no index":
        index.unlink()
    elif kind == "index of numbers":
        index.write_text('{"weight_map": {"lm_head.weight": [1]}}')
    elif kind == "shard of another folder":
        shutil.copy(shard, folder.parent / "x")
        index.write_text(json.dumps({"weight_map": {**listed["weight_map"], "lm_head.weight": "../x"}}))
    elif kind == "shard not on disk":
        shard.unlink()
    elif kind == "shard not in the index":
        listed["weight_map"] = {n: f for n, f in listed["weight_map"].items() if f != SHARD}
        index.write_text(json.dumps(listed))
    elif kind == "tensor not in its shard":
        listed["weight_map"]["model.visual.x"] = SHARD
        index.write_text(json.dumps(listed))
    elif kind == "tensor in another shard":
        listed["weight_map"]["lm_head.weight"] = SHARD.replace("1-of", "2-of")
        index.write_text(json.dumps(listed))
    elif kind == "truncated":
        os.truncate(shard, shard.stat().st_size - 1)
    elif kind == "longer":
        with shard.open("ab") as file:
            file.write(b"\0")
    elif kind == "header length":
        shard.write_bytes((1 << 60).to_bytes(8, "little") + shard.read_bytes()[8:])
    elif kind == "header beyond the file":
        shard.write_bytes((50_000_000).to_bytes(8, "little") + shard.read_bytes()[8:])
    elif kind == "empty shard":
        shard.write_bytes(b"")
    elif kind == "header":
        data = bytearray(shard.read_bytes())
        data[8] ^= 1
        shard.write_bytes(data)
    elif kind == "overlap":
        last = max(read_header(shard)[0].values(), key=lambda t: t.offset)
        edit_header(shard, lambda h: h[last.name].update(data_offsets=[0, last.n_bytes]))
    elif kind == "extent":
        edit_header(shard, lambda h: h["lm_head.weight"].update(shape=[320, 129]))
    elif kind == "shape":
        edit_header(shard, lambda h: h["lm_head.weight"].update(shape=[128, 320]))
    elif kind == "dtype":
        edit_header(shard, lambda h: h["lm_head.weight"].update(dtype="F4"))
    elif kind == "half precision":
        edit_header(shard, lambda h: h["lm_head.weight"].update(dtype="F16"))
    elif kind == "unknown tensor":
        rename(folder, lambda n: n.replace("lm_head.weight", "lm_head.bias"))
    else:
        rename(folder, lambda n: {"pack": "language_model.", "unknown layout": "transformer."}[kind] + n)


def rename(folder: Path, change: Callable[[str], str]) -> None:
    """Renames every tensor in the files and in the index."""
    for path in folder.glob("*.safetensors"):
        edit_header(path, lambda h: [h.update({change(n): h.pop(n)}) for n in list(h) if n != "__metadata__"])
    names = {n: p.name for p in folder.glob("*.safetensors") for n in read_header(p)[0]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


BAD = {
    "no folder": r"config\.json is missing",
    "no config": r"config\.json is missing",
    "config is not JSON": "cannot be read as JSON",
    "config is a list": "holds no JSON object",
    "other model": "model_type is 'qwen3', expected 'qwen4_exp'",
    "no text_config": "text_config is missing",
    "no hidden_size": "hidden_size is missing",
    "layer type": "'sliding_attention'",
    "no index": r"index\.json is missing",
    "index of numbers": "no weight_map of file names",
    "shard of another folder": r"shard \.\./x of .* is no file of this folder",
    "shard not on disk": f"shard {SHARD} of .* is no file of this folder",
    "shard not in the index": f"shard {SHARD} is missing from",
    "tensor not in its shard": r"places model\.visual\.x in",
    "tensor in another shard": r"lm_head\.weight is in",
    "truncated": "tensors end at byte",
    "longer": "tensors end at byte",
    "header length": "header of 1152921504606846976 bytes",
    "header beyond the file": "header of 50000000 bytes",
    "empty shard": "header of -1 bytes",
    "header": "not JSON",
    "overlap": "begins at byte",
    "extent": r"lm_head\.weight BF16 \[320, 129\] spans 81920 bytes, expected 82560",
    "shape": r"lm_head\.weight is BF16 \[128, 320\], expected .* \[320, 128\]",
    "dtype": "dtype F4",
    "half precision": r"lm_head\.weight is F16 \[320, 128\], expected BF16 or F32",
    "unknown tensor": r"lm_head\.weight is missing",
    "pack": "already converted",
    "unknown layout": "unknown layout",
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_named_and_leaves_nothing(kind: str, copy: Path, tmp_path: Path) -> None:
    damage(kind, copy)
    with pytest.raises(ModelFormatError, match=BAD[kind]):
        convert(copy, tmp_path / "pack", "optimized-speed")
    assert set(names(tmp_path)) <= {"release", "x"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("mtp.fc_hidden.weight"), r"mtp\.fc_hidden\.weight is missing"),
        (lambda p: p.update({"mtp.extra": p["lm_head.weight"]}), r"unknown tensor mtp\.extra"),
        (lambda p: p.pop(f"{PLE}ngram_embedding.shard_1.weight"), "n-gram table of 1 shards"),
        (
            lambda p: p.update({f"{PLE}ngram_embedding.shard_1.weight": p["lm_head.weight"][0, 0]}),
            r"shard_1\.weight is",
        ),
        (
            lambda p: p.update({"lm_head.weight": p["lm_head.weight"] * np.inf}),
            r"lm_head\.weight holds a value that is",
        ),
        (
            lambda p: p.update({"lm_head.weight": p["lm_head.weight"].astype(ml_dtypes.float8_e4m3fn)}),
            r"its scale lm_head\.weight_scale_inv is missing",
        ),
    ],
)
def test_a_wrong_set_of_tensors_is_named(change: Any, message: str, tiny: Path, tmp_path: Path) -> None:
    parts = arrays(tiny)
    change(parts)
    write_release(tmp_path / "release", config_of(tiny), parts)
    with pytest.raises(ModelFormatError, match=message):
        convert(tmp_path / "release", tmp_path / "pack", "optimized-speed")
    assert names(tmp_path) == ["release"]


def test_a_flipped_header_bit_never_escapes_as_another_error(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    shapes = {"a.weight": ("U32", (3, 4)), "a.scales": ("BF16", (3, 1)), "b": ("I64", (2,))}
    with FileWriter(path, shapes, {"format": "mlx"}) as file:
        for info in read_header(path)[0].values():
            file.write(info.name, 0, np.zeros(info.n_bytes, np.uint8))
    data = path.read_bytes()
    survived = 0
    for bit in range(8 * (8 + int.from_bytes(data[:8], "little"))):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = read_header(path)[0]
        except ModelFormatError:
            continue
        # Names, metadata, and shapes or types of the same size: what the checks by name are for.
        survived += 1
        assert sum(t.n_bytes for t in found.values()) == 3 * 4 * 4 + 3 * 2 + 2 * 8
    assert survived < 300


def test_rows_of_a_file_that_shrank_are_refused(tiny: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(tiny / SHARD, tmp_path / SHARD))
    info = max(read_header(path)[0].values(), key=lambda t: t.offset)
    os.truncate(path, info.offset + info.n_bytes - 1)
    with pytest.raises(ModelFormatError, match=f"ends inside {info.name}"):
        read_rows(info, 0, info.n_rows)


# ---------------------------------------------------------------------- all or nothing
def test_an_existing_destination_is_untouched(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("pack", "link"):
        with pytest.raises(InvalidRequest, match="exists"):
            convert(tiny, tmp_path / name, "optimized-speed")
    assert names(tmp_path) == ["link", "pack"]


def test_a_destination_that_appears_meanwhile_is_untouched(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="appeared"):
        convert(tiny, tmp_path / "pack", "bare-speed", progress=lambda *_: (tmp_path / "pack").mkdir(exist_ok=True))
    assert names(tmp_path) == ["pack"]
    assert not names(tmp_path / "pack")


def test_an_interrupt_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def interrupt(done: int, total: int, _name: str) -> None:
        if done > total // 2:
            seen.extend(names(tmp_path))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tiny, tmp_path / "pack", "optimized-speed", progress=interrupt)
    assert seen == [f"pack.partial-{os.getpid()}"]
    assert not names(tmp_path)


@pytest.mark.parametrize("after", [0, 1, 40])
def test_a_full_disk_leaves_nothing(after: int, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, left = os.pwrite, iter(range(after))

    def full(fd: int, data: Any, at: int) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    before = len(names(Path("/dev/fd")))
    with pytest.raises(IoError, match="No space left on device"):
        convert(tiny, tmp_path / "pack", "optimized-speed")
    assert not names(tmp_path)
    assert len(names(Path("/dev/fd"))) == before


def test_too_little_space_is_refused_before_anything_is_written(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: argparse.Namespace(free=1000))
    monkeypatch.setattr(Path, "mkdir", None)
    with pytest.raises(IoError, match="1,000 are free"):
        convert(tiny, tmp_path / "pack", "optimized-speed")
    assert not names(tmp_path)


def test_a_limit_of_the_file_size_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "from qwenmtp.convert import convert; convert(sys.argv[1], sys.argv[2], 'optimized-speed')"
    )
    run = run_python(code, tiny, tmp_path / "pack")
    assert run.returncode == 1
    assert "IoError" in run.stderr.splitlines()[-1]
    assert "File too large" in run.stderr
    assert not names(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_command_leaves_nothing(number: int, tiny: Path, tmp_path: Path) -> None:
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args([str(tiny), str(tmp_path / "pack"), "--recipe", "bare-speed"])
    with pytest.raises(KeyboardInterrupt):
        command.run(args, lambda *_: os.kill(os.getpid(), number))
    assert not names(tmp_path)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == handlers
    assert command.run(args).recipe["name"] == "bare-speed"


def test_a_release_that_cannot_be_read_is_an_io_error(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("qwenmtp.convert.released.read_header", refuse)
    with pytest.raises(IoError, match="Permission denied"):
        convert(copy, tmp_path / "pack", "optimized-speed")
    assert names(tmp_path) == ["release"]


def test_a_missing_parent_is_an_error_not_a_folder(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(IoError, match="No such file"):
        convert(tiny, tmp_path / "absent" / "pack", "optimized-speed")
    assert not names(tmp_path)


# ---------------------------------------------------------------------- memory
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of a process from /proc")
def test_memory_stays_below_two_of_the_largest_tensors(tmp_path: Path) -> None:
    make = json.loads(json.dumps(GOLDEN["make"]))
    make["overrides"] |= {"ngram_vocab_size_base": 30_000, "split_ngram_parts": 1}
    make_tiny.make(tmp_path / "release", **make)
    infos = [t for p in (tmp_path / "release").glob("*.safetensors") for t in read_header(p)[0].values()]
    largest = max(t.n_bytes for t in infos)
    assert largest > 30e6
    code = (
        "import sys, mlx.core as mx\nfrom qwenmtp.convert import convert\n"
        "peak = lambda name: int(open('/proc/self/status').read().split(name + ':')[1].split()[0]) * 1024\n"
        "mx.eval(mx.quantize(mx.ones((64, 64)), stream=mx.cpu)); before = peak('VmRSS')\n"
        "convert(sys.argv[1], sys.argv[2], 'optimized-speed'); print(peak('VmHWM') - before)"
    )
    run = run_python(code, tmp_path / "release", tmp_path / "pack")
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 2 * largest, (run.stdout, largest)


def run_python(code: str, *args: Path) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], env=paths, capture_output=True, text=True, check=False
    )
