"""text_files.py: what is read beside the weights, and whose fault a bad file is."""

import json
from pathlib import Path

import pytest

from qwenmtp.errors import ModelFormatError
from qwenmtp.text_files import read_text_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    return tmp_path


def test_absent_optional_files_are_empty(folder: Path) -> None:
    files = read_text_files(str(folder))
    assert (files.tokenizer, files.tokenizer_config, files.generation_config, files.runtime) == (b"{}", {}, {}, {})
    assert files.chat_template is None
    assert files.folder == folder


def test_every_file_is_read_as_utf8(folder: Path) -> None:
    for name, key in (("tokenizer_config", "a"), ("generation_config", "b"), ("mtplx_runtime", "c")):
        (folder / f"{name}.json").write_text(json.dumps({key: "\u00e9"}, ensure_ascii=False), encoding="utf-8")
    (folder / "chat_template.jinja").write_text("\u00e9", encoding="utf-8")
    files = read_text_files(folder)
    assert (files.tokenizer_config, files.generation_config, files.runtime) == (
        {"a": "\u00e9"},
        {"b": "\u00e9"},
        {"c": "\u00e9"},
    )
    assert files.chat_template == "\u00e9"


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"no tokenizer.json in .*") as caught:
        read_text_files(tmp_path)
    assert caught.value.details == {"file": "tokenizer.json"}


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "mtplx_runtime.json"])
@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff{}", b"[" * 100_000, b'{"a": 1'])
def test_a_damaged_file_is_named(folder: Path, name: str, raw: bytes) -> None:
    (folder / name).write_bytes(raw)
    with pytest.raises(ModelFormatError) as caught:
        read_text_files(folder)
    assert caught.value.details == {"file": name}
    assert name in str(caught.value)


def test_a_template_that_is_not_utf8_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(ModelFormatError, match=r"chat_template.jinja is not UTF-8 at byte 2"):
        read_text_files(folder)


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "generation_config.json").mkdir()
    with pytest.raises(ModelFormatError, match=r"cannot read .*generation_config.json"):
        read_text_files(folder)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, None),
        ({"eos_token": None}, None),
        ({"eos_token": "<e>"}, "<e>"),
        ({"eos_token": {"content": "<e>"}}, "<e>"),
    ],
)
def test_special_token_in_either_form(folder: Path, config: dict, text: str | None) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_text_files(folder).special_token("eos_token") == text


@pytest.mark.parametrize("value", [5, ["<e>"], {"content": 5}])
def test_special_token_of_another_kind_is_refused(folder: Path, value: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": value}))
    with pytest.raises(ModelFormatError, match=r"eos_token in tokenizer_config\.json"):
        read_text_files(folder).special_token("eos_token")
