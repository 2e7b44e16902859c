"""geometry.py, weights.py, table.py: a model folder with one wrong part is refused by name and with its code."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwenmtp import ModelFormatError, table
from qwenmtp.weights import open_model_files

MODELS = Path(__file__).resolve().parents[1] / "golden" / "model"
Edit = Callable[[dict[str, Any]], None]


def refused(folder: Path, open_it: Callable[[Path], Any] = open_model_files) -> str:
    """The message with which a folder is refused."""
    with pytest.raises(ModelFormatError) as caught:
        open_it(folder)
    assert caught.value.code == "model_load_error"
    return str(caught.value)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / "small", tmp_path / "small"))


def edit(path: Path, change: Edit) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def text(**fields: Any) -> Edit:
    def change(config: dict[str, Any]) -> None:
        config["text_config"].update(fields)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("text_config"), "text_config is missing"),
        (text(ple_layer_ids="1"), "ple_layer_ids is '1'"),
        (text(eos_token_id="</s>"), "eos_token_id is '</s>'"),
        (text(layer_types=None, full_attention_interval=0), "full_attention_interval is 0"),
        (text(layer_types=["full_attention"]), "layer_types has no"),
        (text(rope_parameters=["default"]), "rope_parameters is no object"),
        (text(rope_parameters={"rope_type": "linear"}), "rope_type is 'linear'"),
        (text(rms_norm_eps="small"), "rms_norm_eps is 'small', expected a number"),
        (text(hidden_size=1.5), "hidden_size is 1.5, expected an integer"),
        (text(hidden_size=None), "hidden_size is missing"),
        (lambda c: c.update(quantization=[4]), "quantization is no object"),
    ],
    ids=lambda v: re.sub(r"\W+", "-", v) if isinstance(v, str) else "",
)
def test_a_wrong_field_is_named(small: Path, change: Edit, words: str) -> None:
    edit(small / "config.json", change)
    assert words in refused(small)


def test_an_unknown_layer_type_is_named(small: Path) -> None:
    edit(small / "config.json", lambda c: c["text_config"]["layer_types"].__setitem__(0, "sliding"))
    assert "layer type 'sliding'" in refused(small)


def test_an_index_without_a_map_is_refused(small: Path) -> None:
    edit(small / "model.safetensors.index.json", lambda c: c.update(weight_map=["a"]))
    assert "no weight_map of file names" in refused(small)


def test_a_folder_without_weights_is_refused(small: Path) -> None:
    for path in small.glob("*.safetensors*"):
        path.unlink()
    assert "holds no model*.safetensors" in refused(small)


def test_a_width_of_the_side_table_that_is_no_number_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODELS / "speed", tmp_path / "speed"))
    path = folder / "ngram-table.safetensors"
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"]["ngram_bits"] = "four"
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + raw[8 + size :])
    assert "ngram_bits" in refused(folder)


def test_a_model_without_a_table_has_no_row_file(small: Path, tmp_path: Path) -> None:
    edit(small / "config.json", text(ple_layer_ids=[]))
    message = refused(small, lambda folder: table.interleave(folder, tmp_path / "rows"))
    assert "has 0 n-gram tables, expected one" in message
    assert not (tmp_path / "rows").exists()
