"""convert: the bytes of MTPLX's own converter, in every way that a release can be stored."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from convert.release import GATE, GOLDEN, PLE, arrays, config_of, make_tiny, run_python, tensors, write_release

from qwenmtp.convert import convert, pack
from qwenmtp.convert.recipe import BITS
from qwenmtp.safetensors_io import read_header


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
