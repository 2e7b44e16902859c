"""tokenizer.py: text and ids both ways, streams that never split or repeat a character, stop strings."""

import itertools
import json
import unicodedata
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from qwenmtp.errors import InvalidRequest, ModelFormatError
from qwenmtp.text_files import TextFiles, read_text_files
from qwenmtp.tokenizer import StopStrings, Tokenizer, check_ids

# Byte-level vocabulary: 256 bytes, the pieces their merges reach, one piece that is no byte text, added tokens.
PIECES = ["th", "the", "Ġthe", "ðŁ", "ðŁĳ", "Ã©", "âĢ", "ĠÃ", "12"]
ADDED = {266: "<|im_start|>", 267: "<|im_end|>", 268: "<think>", 269: "<é >", 270: "<é>"}


def tokenizer_json(**changes: object) -> bytes:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(alphabet + PIECES)} | {"Q Q": 265}
    merges = [
        ["t", "h"],
        ["th", "e"],
        ["Ġ", "the"],
        ["ð", "Ł"],
        ["ðŁ", "ĳ"],
        ["Ã", "©"],
        ["â", "Ģ"],
        ["Ġ", "Ã"],
        ["1", "2"],
    ]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [{"id": i, "content": content, **flags} for i, content in ADDED.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    return json.dumps(whole | changes).encode()


def text_files(**changes: object) -> TextFiles:
    fields = {
        "folder": Path("model"),
        "tokenizer": tokenizer_json(),
        "tokenizer_config": {},
        "generation_config": {},
        "runtime": {},
        "chat_template": None,
    }
    return TextFiles(**fields | changes)


CONFIG = {
    "eos_token": "<|im_end|>",
    "added_tokens_decoder": {"268": {"content": "<think>", "special": False}},
}
TOKENIZER = Tokenizer(text_files(tokenizer_config=CONFIG, generation_config={"eos_token_id": [267, 266]}))
WHOLE = tokenizers.Tokenizer.from_buffer(tokenizer_json())
DEMO_FOLDER = Path(__file__).resolve().parents[2] / "models" / "demo"
DEMO = Tokenizer(read_text_files(DEMO_FOLDER))
LIBRARY = tokenizers.Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))

NASTY = [
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",  # family joined by zero-width joiners
    "\U0001f1e9\U0001f1ea",  # flag of two regional letters
    "e\u0266 a\u0300",  # combining marks
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f44d\U0001f3fd",  # thumb with skin tone
    "the caf\u00e9 \u2013 the 12th",
    "\x00\x7f\r\n\t",
]
text = st.one_of(st.text(st.characters(exclude_categories=["Cs", "Cn"])), st.lists(st.sampled_from(NASTY)).map("".join))
# 256 bytes, pieces, holes, special tokens and ids beyond the vocabulary.
token_ids = st.lists(st.one_of(st.integers(0, 275), st.integers(94, 255), st.sampled_from(sorted(ADDED))))


def pieces_of(ids: list[int], cuts: list[int], skip_special: bool) -> list[str]:
    stream = TOKENIZER.stream(skip_special=skip_special)
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [stream.push(ids[a:b]) for a, b in itertools.pairwise(edges)] + [stream.flush()]


@given(text)
def test_text_survives_encoding_up_to_normal_form(value: str) -> None:
    ids = TOKENIZER.encode(value)
    assert TOKENIZER.decode(ids, skip_special=False) == unicodedata.normalize("NFC", value)


@given(token_ids, st.lists(st.integers(0, 200)), st.booleans())
@example([TOKENIZER.encode("\U0001f468")[0]], [], True)
def test_pieces_join_to_the_whole_and_hold_no_half_character(ids: list[int], cuts: list[int], skip: bool) -> None:
    pieces = pieces_of(ids, cuts, skip)
    assert "".join(pieces) == TOKENIZER.decode(ids, skip_special=skip)
    data = b"".join(TOKENIZER.token_bytes(i) for i in ids if not (skip and i in TOKENIZER.special_ids))
    assert "".join(pieces) == data.decode("utf-8", "replace")


@given(text)
def test_a_stream_of_valid_text_never_shows_a_broken_character(value: str) -> None:
    ids = TOKENIZER.encode(value.replace("�", ""))
    pieces = pieces_of(ids, list(range(len(ids))), False)
    assert not any("�" in piece for piece in pieces)
    assert pieces[-1] == ""


@given(st.lists(st.one_of(st.integers(0, 264), st.integers(94, 255))))
def test_whole_decode_is_the_tokenizers_librarys(ids: list[int]) -> None:
    # 265 and the added tokens are left out: there the library reads printable Latin-1 text as raw bytes.
    assert TOKENIZER.decode(ids) == WHOLE.decode(ids)


def test_every_byte_cut_of_nasty_text() -> None:
    byte_token = {TOKENIZER.token_bytes(i)[0]: i for i in range(256)}
    for value in NASTY:
        ids = [byte_token[b] for b in value.encode()]
        pieces = pieces_of(ids, list(range(len(ids))), True)
        assert "".join(pieces) == value
        assert all(len(piece) <= 1 for piece in pieces)


def test_an_answer_that_ends_inside_a_character_flushes_one_mark() -> None:
    stream = TOKENIZER.stream()
    assert stream.push(TOKENIZER.encode("a\U0001f468")[:-1]) == "a"
    assert stream.flush() == "�"
    assert stream.flush() == ""


def test_special_tokens_are_skipped_or_shown() -> None:
    ids = TOKENIZER.encode("<|im_start|>a<think>b<|im_end|>")
    assert ids[0] == 266
    assert ids[-1] == 267
    assert TOKENIZER.decode(ids) == "a<think>b"  # tokenizer_config.json calls <think> not special
    assert TOKENIZER.decode(ids, skip_special=False) == "<|im_start|>a<think>b<|im_end|>"
    assert Tokenizer(text_files()).decode(ids) == "ab"


def test_added_tokens_are_text_and_not_byte_pieces() -> None:
    assert TOKENIZER.token_bytes(269) == "<é >".encode()
    assert TOKENIZER.token_bytes(270) == "<é>".encode()  # as a byte-level piece, é would be one byte
    assert TOKENIZER.token_bytes(265) == b"Q Q"  # a space is no character of a byte-level piece


def test_ids_without_text_are_empty() -> None:
    assert [TOKENIZER.token_bytes(i) for i in (-1, 271, 10**9, 2**40)] == [b""] * 4
    assert TOKENIZER.vocab_size == 271


def test_a_truncation_in_the_file_does_not_cut_prompts() -> None:
    assert len(TOKENIZER.encode("a" * 50)) == 50


def test_nothing_is_added_around_a_prompt() -> None:
    start = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [266], "tokens": ["<|im_start|>"]}},
    }
    assert len(Tokenizer(text_files(tokenizer=tokenizer_json(post_processor=template))).encode("a")) == 1


@pytest.mark.parametrize("value", [b"a", 5, None, ["a"]])
def test_encode_refuses_what_is_not_text(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^\[tokenizer.encode\] .*, expected text"):
        TOKENIZER.encode(value)


def test_encode_refuses_a_lone_surrogate() -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate at character 1"):
        TOKENIZER.encode("a\ud83d")


@pytest.mark.parametrize(
    ("generation", "config", "stops"),
    [
        ({"eos_token_id": 267}, {}, (267,)),
        ({"eos_token_id": [267, 5, 5]}, {"eos_token": "<|im_start|>"}, (5, 266, 267)),
        ({}, {"eos_token": {"content": "<|im_end|>", "special": True}}, (267,)),
        ({"eos_token_id": None}, {"eos_token": None}, ()),
        ({"eos_token_id": 0}, {}, (0,)),
    ],
)
def test_stop_ids_come_from_both_files(generation: dict, config: dict, stops: tuple) -> None:
    assert Tokenizer(text_files(generation_config=generation, tokenizer_config=config)).stop_ids == stops


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer": b"{"},
        {"tokenizer": b'{"a": 1}'},
        {"tokenizer": tokenizer_json(decoder={"type": "WordPiece", "prefix": "#", "cleanup": True})},
        {"tokenizer": tokenizer_json(decoder=None)},
        {"tokenizer_config": {"eos_token": "<nope>"}},
        {"tokenizer_config": {"eos_token": 5}},
        {"tokenizer_config": {"added_tokens_decoder": {"268": {"content": "<other>"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"400": {"content": "<other>"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "<think>"}}}},
        {"generation_config": {"eos_token_id": "2"}},
        {"generation_config": {"eos_token_id": [True]}},
        {"generation_config": {"eos_token_id": -1}},
    ],
)
def test_a_damaged_tokenizer_is_the_models_fault(changes: dict) -> None:
    with pytest.raises(ModelFormatError) as caught:
        Tokenizer(text_files(**changes))
    assert caught.value.code == "model_load_error"


def test_digest_names_the_file() -> None:
    assert len(TOKENIZER.digest) == 64
    assert TOKENIZER.digest == Tokenizer(text_files()).digest
    assert TOKENIZER.digest != Tokenizer(text_files(tokenizer=tokenizer_json(normalizer=None))).digest


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), range(1, 3), np.array([1, 2], np.uint8), [np.int64(1), 2]])
def test_prompt_ids_become_plain_ints(ids: object) -> None:
    got = check_ids(ids, 3)
    assert got == [1, 2]
    assert {type(i) for i in got} == {int}


@pytest.mark.parametrize(
    "ids",
    [
        "12",
        b"12",
        bytearray(b"12"),
        5,
        None,
        [1.0],
        [True, 1],
        ["1"],
        {1: 2},
        MappingProxyType({1: 2}),
        {1, 2},
        np.array([1.0]),
        np.array([[1]]),
        np.array(1),
        np.array([True]),
    ],
)
def test_prompt_ids_of_another_kind_are_refused(ids: object) -> None:
    with pytest.raises(InvalidRequest, match="expected a sequence of ints"):
        check_ids(ids, 3)


def test_prompt_ids_out_of_range_name_the_place() -> None:
    for bad in (-1, 3):
        with pytest.raises(InvalidRequest, match=rf"token id {bad} at position 1, expected 0 to 2") as caught:
            check_ids([0, bad], 3)
        assert caught.value.details == {"id": bad, "position": 1, "vocab_size": 3}
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        check_ids([], 3)


def first_stop(whole: str, stops: list[str]) -> tuple[str, str | None]:
    """Reference: the shortest start of the text that ends with a stop string, cut before the longest such."""
    for end in range(len(whole) + 1):
        ends = [stop for stop in stops if whole[:end].endswith(stop)]
        if ends:
            longest = max(ends, key=len)
            return whole[: end - len(longest)], longest
    return whole, None


abc = st.text("abc", max_size=30)


@given(abc, st.lists(st.text("abc", min_size=1, max_size=5), max_size=4), st.lists(st.integers(0, 30)))
@example("aab", ["ab"], [1, 2])
def test_stop_strings_equal_a_search_of_the_whole(whole: str, stops: list[str], cuts: list[int]) -> None:
    edges = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    scan, shown, fed = StopStrings(stops), "", ""
    for a, b in itertools.pairwise(edges):
        fed += whole[a:b]
        shown += scan.push(whole[a:b])
        if scan.matched is None:
            held = len(fed) - len(shown)
            assert held <= max([len(stop) for stop in stops], default=1) - 1
            assert not held or any(stop.startswith(fed[-held:]) for stop in stops)
    shown += scan.flush()
    assert (shown, scan.matched) == first_stop(whole, stops)


def test_a_stop_string_over_two_pieces_leaks_nothing() -> None:
    scan = StopStrings(["</end>", "zz"])
    assert [scan.push(p) for p in ["a<", "/e", "nd>b", "more"]] == ["a", "", "", ""]
    assert scan.matched == "</end>"
    assert scan.flush() == ""


def test_a_false_start_is_released() -> None:
    scan = StopStrings("</end>")
    assert [scan.push(p) for p in ["a</", "em", "<"]] == ["a", "</em", ""]
    assert scan.flush() == "<"
    assert scan.flush() == ""


def test_one_string_is_one_stop() -> None:
    scan = StopStrings("ab")
    assert scan.push("xb") == "xb"
    assert scan.push("ab") == ""


@pytest.mark.parametrize("stops", [[""], "", ["a", ""], [5], [b"a"]])
def test_stop_strings_are_non_empty_text(stops: object) -> None:
    with pytest.raises(InvalidRequest, match="expected non-empty text") as caught:
        StopStrings(stops)
    assert caught.value.details == {"field": "stop"}


@given(st.lists(st.integers(0, 4095)), st.lists(st.integers(0, 100)))
def test_random_ids_of_the_demo_vocabulary(ids: list[int], cuts: list[int]) -> None:
    for skip in (False, True):
        stream, edges = DEMO.stream(skip_special=skip), sorted({0, len(ids), *(c % (len(ids) + 1) for c in cuts)})
        pieces = [stream.push(ids[a:b]) for a, b in itertools.pairwise(edges)] + [stream.flush()]
        kept = [i for i in ids if not (skip and i in DEMO.special_ids)]
        assert "".join(pieces) == DEMO.decode(ids, skip_special=skip) == LIBRARY.decode(kept, skip_special_tokens=False)


@given(text)
def test_the_demo_tokenizer_is_the_librarys(value: str) -> None:
    assert DEMO.encode(value) == LIBRARY.encode(value).ids
    assert DEMO.decode(DEMO.encode(value), skip_special=False) == unicodedata.normalize("NFC", value)


def test_what_the_demo_says_about_its_tokens() -> None:
    assert DEMO.stop_ids == (0, 2)
    assert DEMO.special_ids == {0, 1, 2}
    assert DEMO.vocab_size == 4096
    assert DEMO.encode("<think>a</think><|im_end|>") == [5, 73, 6, 2]  # as transformers 5.16.1
