"""Every way a checkpoint can be wrong is refused with the tensor or field that is wrong, and nothing is loaded."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwenmtp.errors import ModelFormatError

from .conftest import load

Copy = Callable[[str], Path]


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in fields.items():
        if value is None:
            config["text_config"].pop(name, None)
        else:
            config["text_config"][name] = value
    path.write_text(json.dumps(config))


def rewrite(file: Path, change: Callable[[dict[str, Any], bytes], bytes]) -> None:
    """Change a safetensors header (in place) and return the payload to write behind it."""
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    payload = change(header, raw[8 + length :])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + payload)


def shard_of(folder: Path, tensor: str) -> Path:
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return folder / index[tensor]


def rename(folder: Path, file: Path, old: str, new: str | None) -> None:
    """Rename a tensor in file and index, or take it out of both (its bytes go too)."""

    def change(header: dict[str, Any], payload: bytes) -> bytes:
        entry = header.pop(old)
        if new is not None:
            header[new] = entry
            return payload
        begin, end = entry["data_offsets"]
        for other in header.values():
            if "data_offsets" in other and other["data_offsets"][0] >= end:
                other["data_offsets"] = [o - (end - begin) for o in other["data_offsets"]]
        return payload[:begin] + payload[end:]

    rewrite(file, change)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    if old in index["weight_map"]:
        shard = index["weight_map"].pop(old)
        if new is not None:
            index["weight_map"][new] = shard
    path.write_text(json.dumps(index))


EMBED = "model.language_model.embed_tokens.weight"
GATE = "language_model.model.layers.0.mlp.gate"


def test_missing_tensor_is_named(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    name = "model.language_model.layers.0.linear_attn.A_log"
    rename(folder, shard_of(folder, name), name, None)
    with pytest.raises(ModelFormatError, match=rf"{name}: missing"):
        load(folder)


def test_renamed_tensor_is_named(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    old = "model.language_model.layers.0.linear_attn.A_log"
    rename(folder, shard_of(folder, old), old, "model.language_model.layers.0.linear_attn.B_log")
    with pytest.raises(ModelFormatError, match="A_log: missing"):
        load(folder)


def test_leftover_tensor_is_refused(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    shard = shard_of(folder, EMBED)

    def change(header: dict[str, Any], payload: bytes) -> bytes:
        header["model.language_model.surplus.weight"] = {
            "dtype": "BF16",
            "shape": [2],
            "data_offsets": [len(payload), len(payload) + 4],
        }
        return payload + bytes(4)

    rewrite(shard, change)
    with pytest.raises(ModelFormatError, match=r"surplus\.weight: unexpected"):
        load(folder)


def test_wrong_shape_names_found_and_expected(checkpoint: Copy) -> None:
    folder = checkpoint("small")

    def change(header: dict[str, Any], payload: bytes) -> bytes:
        header[EMBED]["shape"] = header[EMBED]["shape"][::-1]
        return payload

    rewrite(shard_of(folder, EMBED), change)
    with pytest.raises(ModelFormatError, match=r"embed_tokens\.weight: shape \[36, 64\], expected \[64, 36\]"):
        load(folder)


def test_wrong_dtype_names_found_and_expected(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    name = "model.language_model.layers.1.ple.norm_key.weight"

    def change(header: dict[str, Any], payload: bytes) -> bytes:
        entry = header[name]
        entry["dtype"], entry["shape"] = "U8", [entry["shape"][0] * 2]
        return payload

    rewrite(shard_of(folder, name), change)
    with pytest.raises(ModelFormatError, match=r"norm_key\.weight"):
        load(folder)


@pytest.mark.parametrize(("dropped", "named"), [(".biases", ".biases"), (".scales", ".scales")])
def test_half_quantised_module_is_refused(checkpoint: Copy, dropped: str, named: str) -> None:
    folder = checkpoint("speed")
    rename(folder, folder / "model.safetensors", GATE + dropped, None)
    with pytest.raises(ModelFormatError, match=rf"{GATE}{named}: missing"):
        load(folder)


def test_packed_codes_without_any_scales_are_refused(checkpoint: Copy) -> None:
    folder = checkpoint("speed")
    for leaf in (".biases", ".scales"):
        rename(folder, folder / "model.safetensors", GATE + leaf, None)
    with pytest.raises(ModelFormatError, match=rf"{GATE}\.scales: missing for packed codes"):
        load(folder)


def test_width_that_no_kernel_has_is_refused(checkpoint: Copy) -> None:
    folder = checkpoint("speed")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization"][GATE] = {"bits": 7, "group_size": 64}
    path.write_text(json.dumps(config))
    with pytest.raises(ModelFormatError, match="7 bits in groups of 64"):
        load(folder)


def test_mode_that_is_not_affine_is_refused(checkpoint: Copy) -> None:
    folder = checkpoint("speed")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization"]["mode"] = "mxfp4"
    path.write_text(json.dumps(config))
    with pytest.raises(ModelFormatError, match="mxfp4"):
        load(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "36"}, "hidden_size is '36', expected an integer"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 2**40}, "expected a 32-bit number"),
        ({"hc_count": 1}, "hc_count is 1, expected 2 to 8 streams"),
        ({"indexer_budget": 18}, "indexer_budget is 18, expected a multiple of indexer_compress_ratio"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads is 2"),
        ({"linear_num_key_heads": 5}, "multiple of linear_num_key_heads"),
        ({"num_key_value_heads": 5}, "multiple of num_key_value_heads"),
        ({"num_experts_per_tok": 600}, "at most num_experts"),
        ({"ple_embed_dim": 37}, "ple_embed_dim is 37"),
        ({"ple_layer_ids": [3]}, "ple_layer_ids entry is 3"),
        ({"ple_layer_ids": [99]}, "ple_layer_ids entry is 99"),
        ({"eos_token_id": None}, "eos_token_id is -1"),
        ({"eos_token_id": 64}, "below vocab_size"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"output_gate_type": "silu"}, "output_gate_type is 'silu'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"layer_types": ["linear_attention"]}, "layer_types"),
        ({"layer_types": ["mamba"] * 5}, "layer"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type is 'llama3'"),
        ({"rope_parameters": {"partial_rotary_factor": 9.0}}, "rotary dimension"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"make_ngram_vocab_size_divisible_by": 4096}, "rows, expected 4096"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_geometry_rules(checkpoint: Copy, fields: dict[str, Any], message: str) -> None:
    folder = checkpoint("small")
    edit_config(folder, **fields)
    with pytest.raises(ModelFormatError) as caught:
        load(folder)
    assert message in str(caught.value)


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="is no folder"):
        load(tmp_path / "none")


def test_folder_without_config(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    (folder / "config.json").unlink()
    with pytest.raises(ModelFormatError, match=r"config\.json is missing"):
        load(folder)


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"], ids=["cut", "no-object", "no-utf8"])
def test_config_that_is_no_json_object(checkpoint: Copy, text: str) -> None:
    folder = checkpoint("small")
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelFormatError, match=r"config\.json"):
        load(folder)


def test_other_model_type(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelFormatError, match="model_type is 'llama', expected 'qwen4_exp'"):
        load(folder)


def test_unknown_layout(checkpoint: Copy) -> None:
    folder = checkpoint("speed")
    name = "language_model.model.layers.1.ple.conv_weight"
    rename(folder, folder / "model.safetensors", name, name.replace("conv_weight", "kernel"))
    with pytest.raises(ModelFormatError, match="unknown layout"):
        load(folder)


def test_shard_that_the_index_names_is_missing(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    shard_of(folder, EMBED).unlink()
    with pytest.raises(ModelFormatError, match=r"shard .* is missing"):
        load(folder)


def test_tensor_that_the_index_names_is_not_in_its_shard(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"][EMBED] = next(s for s in shards if s != index["weight_map"][EMBED])
    path.write_text(json.dumps(index))
    with pytest.raises(ModelFormatError, match=r"embed_tokens\.weight: missing from"):
        load(folder)


def test_index_that_points_outside_the_folder(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][EMBED] = "../other.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(ModelFormatError, match="lies outside"):
        load(folder)


def test_truncated_shard(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    shard = shard_of(folder, EMBED)
    shard.write_bytes(shard.read_bytes()[:-1000])
    with pytest.raises(ModelFormatError, match=shard.name):
        load(folder)


def test_every_flipped_bit_of_a_header_length_is_refused(checkpoint: Copy) -> None:
    folder = checkpoint("small")
    shard = shard_of(folder, EMBED)
    raw = shard.read_bytes()
    for bit in range(64):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        shard.write_bytes(damaged)
        with pytest.raises(ModelFormatError):
            load(folder)


def test_flipped_bits_of_a_header_never_load_something_else(checkpoint: Copy) -> None:
    """Either the header still says the same, or the load names what is wrong."""
    folder = checkpoint("small")
    shard = shard_of(folder, EMBED)
    raw = shard.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    original = json.loads(raw[8 : 8 + length])
    for at in range(8, 8 + length, 97):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << at % 8
        shard.write_bytes(damaged)
        try:
            load(folder)
        except ModelFormatError:
            continue
        reread = json.loads(bytes(damaged[8 : 8 + length]))
        reread.pop("__metadata__", None)
        assert reread == {k: v for k, v in original.items() if k != "__metadata__"}
