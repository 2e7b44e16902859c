"""settings.py: sources and their order, strict forms, provenance."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from qwenmtp import settings as settings_module
from qwenmtp.errors import ConfigError, ModelFormatError
from qwenmtp.settings import Settings
from qwenmtp.settings_legacy import CLASSES, LEGACY, NO_EFFECT
from qwenmtp.settings_table import FIELDS, GROUPS

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "settings"
POLICY = json.loads((GOLDEN / "server_policy.json").read_text())
FLASH_NEXT = {"model_type": "qwen4_exp", "text_config": POLICY["text_config"]}


def value(settings: Settings, field: str) -> object:
    group, name = field.split(".")
    return getattr(getattr(settings, group), name)


def values(settings: Settings) -> dict[str, object]:
    return {field: value(settings, field) for field in FIELDS}


# Every kind once: texts that are accepted with their value, and texts that are not.
FORMS = {
    "QWENMTP_CONTEXT_COPY": (
        {"1": True, " ON ": True, "Enabled": True, "0": False, "no": False, "disable": False},
        ["2", "y", "none", "auto", "tru"],
    ),
    "QWENMTP_GDN_COMPILE": (
        {"auto": "auto", "on": "on", "1": "on", "OFF": "off", "false": "off"},
        ["AUTO", "2", "compile"],
    ),
    "QWENMTP_PLE_RESIDENCY": ({"ssd": "ssd", " resident": "resident", "auto": "auto"}, ["SSD", "ram", "1"]),
    "QWENMTP_PLE_THREADS": ({"0": 0, "32": 32, " 8 ": 8}, ["33", "-1", "+8", "8.0", "1_0", "eight", "8 8", "٨"]),
    "QWENMTP_PREFILL_CHUNK": ({"1": 1, "2147483647": 2**31 - 1}, ["0", "2147483648", "auto"]),
    "QWENMTP_SESSION_PIN_S": ({"0": 0.0, "1.5": 1.5, "1e3": 1000.0}, ["-1", "nan", "inf", "10s", "1e400"]),
    "QWENMTP_PLE_HOT_BYTES": (
        {"0": 0, "5": 5, "1K": 1024, "2kb": 2048, "1.5 MiB": 3 * 2**19, "1g": 2**30, "2TiB": 2**41},
        ["", "-1", "1Q", "G", "1.5.5", "auto", "1e3", "9999999T", "0x10", "1 K B"],
    ),
    "QWENMTP_PLE_PREWARM": ({"auto": "auto", "off": "off", "all": "all", "1": 1, "2G": 2**31}, ["on", "Auto", "-1"]),
    "QWENMTP_MEMORY_LIMIT": ({"auto": "auto", "90G": 90 * 2**30}, ["max", "none"]),
    "QWENMTP_MEMORY_BUDGET": ({"none": None, "1K": 1024}, ["auto", "None"]),
    "QWENMTP_CHECKPOINT_MODE": ({"on": "on", "off": "off", "write-only": "write-only"}, ["1", "write_only"]),
    "QWENMTP_TRACE": ({"/tmp/x": "/tmp/x", "none": None, "a b": "a b"}, []),
    "QWENMTP_DTYPE": ({"auto": "auto", "float32": "float32", "bfloat16": "bfloat16"}, ["f32", "float16"]),
}


@pytest.mark.parametrize(
    ("name", "text", "expected"), [(name, text, v) for name, (good, _) in FORMS.items() for text, v in good.items()]
)
def test_strict_forms(name: str, text: str, expected: object) -> None:
    settings = Settings.resolve({name: text})
    field = next(field for field, spec in FIELDS.items() if "QWENMTP_" + spec.env == name)
    assert value(settings, field) == expected
    assert type(value(settings, field)) is type(expected)
    stated = settings.provenance[field].stated
    assert (stated.source, stated.name, stated.raw, stated.value) == ("QWENMTP_*", name, text, expected)


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, (_, bad) in FORMS.items() for text in bad if text.strip()]
)
def test_other_forms_are_errors_that_say_what_is_accepted(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.resolve({name: text})
    error = caught.value
    spec = next(spec for spec in FIELDS.values() if "QWENMTP_" + spec.env == name)
    assert str(error) == f"[settings] {name} is {text!r}, expected {spec.kind.accepted}"
    assert error.code == "config_error"
    assert error.details == {"name": name, "field": spec.name, "value": repr(text), "accepted": spec.kind.accepted}


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_text_says_nothing(text: str) -> None:
    for spec in FIELDS.values():
        assert Settings.resolve({"QWENMTP_" + spec.env: text}).provenance[spec.name].source == "default"


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert Settings.resolve({"QWENMTP_TRACE": "~/t"}).trace.file == "/home/u/t"
    assert Settings.resolve({"MTPLX_NGRAM_ROW_FILE": "~/r"}).ple.row_file == "/home/u/r"
    assert Settings.resolve({}, checkpoint_dir=Path("~/c")).checkpoint.dir == "/home/u/c"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("QWENMTP_PLE_THREAD", "QWENMTP_PLE_THREADS"),
        ("QWENMTP_CONTEX_COPY", "QWENMTP_CONTEXT_COPY"),
        ("QWENMTP_COMPILED_GDN", "QWENMTP_GDN_COMPILE"),
        ("QWENMTP_X", None),
    ],
)
def test_an_unknown_variable_is_an_error_with_a_suggestion(name: str, suggestion: str | None) -> None:
    with pytest.raises(ConfigError, match=f"unknown variable {name}, did you mean QWENMTP_") as caught:
        Settings.resolve({name: "1"})
    assert caught.value.details["name"] == name
    assert suggestion in (None, caught.value.details["suggestion"])


def test_unknown_variables_of_others_are_ignored() -> None:
    assert values(Settings.resolve({"MTPLX_WHATEVER": "x", "PATH": "x", "qwenmtp_dtype": "x"})) == values(
        Settings.resolve({})
    )


@pytest.mark.parametrize("keyword", ["ple.threads", "ple_threads"])
def test_keywords_of_every_spelling(keyword: str) -> None:
    settings = Settings.resolve({}, **{keyword: 3})
    assert settings.ple.threads == 3
    assert settings.provenance["ple.threads"].stated.name == keyword


@pytest.mark.parametrize(
    ("keywords", "field", "expected"),
    [
        ({"dtype": "float32"}, "model.dtype", "float32"),
        ({"model_dtype": "float32"}, "model.dtype", "float32"),
        ({"gdn_compile": False}, "gdn.compile", "off"),
        ({"gdn_compile": True}, "gdn.compile", "on"),
        ({"gdn_compile": "auto"}, "gdn.compile", "auto"),
        ({"context_copy": False}, "decode.context_copy", False),
        ({"ple_hot_bytes": "1M"}, "ple.hot_bytes", 2**20),
        ({"ple_hot_bytes": 0}, "ple.hot_bytes", 0),
        ({"ple_prewarm": "all"}, "ple.prewarm", "all"),
        ({"memory_budget": None}, "memory.budget", None),
        ({"memory_budget": 5}, "memory.budget", 5),
        ({"session_pin_s": 2}, "session.pin_s", 2.0),
        ({"trace": None}, "trace.file", None),
    ],
)
def test_keyword_values(keywords: dict, field: str, expected: object) -> None:
    assert value(Settings.resolve({}, **keywords), field) == expected


@pytest.mark.parametrize(
    "keywords",
    [
        {"context_copy": 1},
        {"context_copy": "on"},
        {"ple_threads": "8"},
        {"ple_threads": True},
        {"ple_threads": 8.0},
        {"ple_threads": 33},
        {"ple_hot_bytes": 1.5},
        {"ple_hot_bytes": True},
        {"ple_hot_bytes": -1},
        {"session_pin_s": float("nan")},
        {"session_pin_s": "1"},
        {"session_pin_s": True},
        {"dtype": None},
        {"gdn_compile": 1},
        {"gdn_compile": None},
        {"trace": 5},
        {"trace": ""},
        {"memory_limit": None},
    ],
)
def test_keyword_values_of_another_type_or_range_are_refused(keywords: dict) -> None:
    (name,) = keywords
    with pytest.raises(ConfigError, match=rf"^\[settings\] {name} is .*, expected ") as caught:
        Settings.resolve({}, **keywords)
    assert caught.value.details["name"] == name


def test_an_unknown_keyword_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown keyword ple_thread, did you mean ple_threads"):
        Settings.resolve({}, ple_thread=3)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode 'fast', expected mtp or ar"):
        Settings.resolve({}, "fast")
    assert Settings.resolve({}, "ar").mode == "ar"


# One field through all six sources, each with its own value.
SOURCES = {
    "keyword": 1,
    "QWENMTP_*": 2,
    "MTPLX_*": 3,
    "pack": 4,
    "default": 2048,
}


@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=4)))
def test_the_strongest_source_that_speaks_counts(present: tuple[bool, ...]) -> None:
    keyword, own, legacy, pack = present
    env = {"QWENMTP_PREFILL_CHUNK": "2"} if own else {}
    env |= {"MTPLX_PREFILL_CHUNK_SIZE": "3"} if legacy else {}
    runtime = {"mtplx_runtime": {"runtime_env_overrides": {"MTPLX_PREFILL_CHUNK_SIZE": 4}}} if pack else {}
    settings = Settings.resolve(env, "mtp", runtime, **({"prefill_chunk": 1} if keyword else {}))
    speaking = [source for source, on in zip(SOURCES, present, strict=False) if on] or ["default"]
    provenance = settings.provenance["prefill.chunk"]
    assert provenance.source == speaking[0]
    assert settings.prefill.chunk == SOURCES[speaking[0]]
    assert [other.source for other in provenance.overruled] == speaking[1:]
    assert provenance.conflict == (len(speaking) > 1)


def test_policy_counts_before_the_default_and_after_the_pack() -> None:
    settings = Settings.resolve({}, "mtp", FLASH_NEXT)
    assert settings.decode.relaxed_draft_ties
    assert settings.provenance["decode.relaxed_draft_ties"].source == "policy"
    runtime = {"runtime_env_overrides": {"MTPLX_QWEN4_RELAXED_DRAFT_TIES": False}}
    settings = Settings.resolve({}, "mtp", {**FLASH_NEXT, "mtplx_runtime": runtime})
    assert not settings.decode.relaxed_draft_ties
    assert settings.provenance["decode.relaxed_draft_ties"].source == "pack"


@pytest.mark.parametrize("pack", [None, {}, {"text_config": {**POLICY["text_config"], "num_hidden_layers": 8}}])
def test_policy_is_for_the_released_geometry_only(pack: dict | None) -> None:
    assert Settings.resolve({}, "mtp", pack).provenance["decode.relaxed_draft_ties"].source == "default"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_packs_folder_is_read(tmp_path: Path, kind: type) -> None:
    assert Settings.resolve({}, "mtp", kind(tmp_path)) == Settings.resolve({})
    (tmp_path / "config.json").write_text(json.dumps(FLASH_NEXT))
    (tmp_path / "mtplx_runtime.json").write_text('{"runtime_env_overrides": {"MTPLX_NGRAM_STAGE": "0"}}')
    settings = Settings.resolve({}, "mtp", kind(tmp_path))
    assert settings.decode.relaxed_draft_ties
    assert not settings.ple.staging
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFormatError, match=r"config\.json is not JSON"):
        Settings.resolve({}, "mtp", kind(tmp_path))


def test_agreement_is_no_conflict() -> None:
    settings = Settings.resolve({"QWENMTP_PREFILL_CHUNK": "3", "MTPLX_PREFILL_CHUNK_SIZE": "3"})
    assert len(settings.provenance["prefill.chunk"].overruled) == 1
    assert not settings.provenance["prefill.chunk"].conflict


@pytest.mark.parametrize(
    ("env", "keywords", "source"),
    [
        ({"MTPLX_QWEN4EXP_COMPILE": "0"}, {"gdn_compile": "on"}, "MTPLX_*"),
        ({"MTPLX_COMPILED_GDN": ""}, {"gdn_compile": True}, "MTPLX_*"),
        ({"QWENMTP_GDN_COMPILE": "off", "MTPLX_COMPILED_GDN": "1"}, {"gdn_compile": "auto"}, "QWENMTP_*"),
        ({"QWENMTP_GDN_COMPILE": "on", "MTPLX_COMPILED_GDN": "1"}, {"gdn_compile": False}, "keyword"),
    ],
)
def test_an_explicit_off_of_the_kill_switch_wins_in_effect(env: dict, keywords: dict, source: str) -> None:
    settings = Settings.resolve(env, **keywords)
    assert settings.gdn.compile == "off"
    assert settings.provenance["gdn.compile"].source == source
    assert set(env) | set(keywords) == {s.name for s in (settings.provenance["gdn.compile"].overruled)} | {
        settings.provenance["gdn.compile"].stated.name
    }
    assert settings.override(gdn_compile="on").gdn.compile == "off"


def test_a_packs_off_is_a_wish_that_stronger_sources_overrule() -> None:
    runtime = {"runtime_env_overrides": {"MTPLX_COMPILED_GDN": "1", "MTPLX_QWEN4EXP_COMPILE": "0"}}
    pack = {"mtplx_runtime": runtime}
    assert Settings.resolve({}, "mtp", pack).gdn.compile == "off"
    assert Settings.resolve({"QWENMTP_GDN_COMPILE": "on"}, "mtp", pack).gdn.compile == "on"


def test_a_packs_truth_value_is_1_or_0() -> None:
    for wish in (False, True):
        pack = {"mtplx_runtime": {"runtime_env_overrides": {"MTPLX_NGRAM_STAGE": wish}}}
        assert Settings.resolve({}, "mtp", pack).ple.staging is wish


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (["MTPLX_NGRAM_STAGE"], "runtime_env_overrides of mtplx_runtime.json is no object"),
        ({"MTPLX_FAMILY_CAPTURE_COMMIT": "maybe"}, "MTPLX_FAMILY_CAPTURE_COMMIT of the pack is 'maybe', expected"),
    ],
)
def test_a_bad_pack_is_named(wishes: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.resolve({}, "mtp", {"mtplx_runtime": {"runtime_env_overrides": wishes}})


def test_other_offs_do_not_kill() -> None:
    settings = Settings.resolve({"QWENMTP_CHECKPOINT_MODE": "off"}, checkpoint_mode="on")
    assert settings.checkpoint.mode == "on"


def test_override_counts_before_earlier_keywords_and_keeps_the_rest() -> None:
    first = Settings.resolve(
        {"QWENMTP_PLE_THREADS": "2", "MTPLX_AR_PIPELINE": "1"}, "ar", ple_threads=3, dtype="float32"
    )
    second = first.override(ple_threads=4)
    assert [second.ple.threads, first.ple.threads] == [4, 3]
    assert [s.value for s in second.provenance["ple.threads"].overruled] == [3, 2]
    assert second.model.dtype == "float32"
    assert (second.mode, second.no_effect) == (first.mode, first.no_effect)
    assert second.override() == second
    assert Settings.resolve({}).override(ple_threads=4).provenance["ple.threads"].overruled == ()


def test_from_env_reads_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module.os, "environ", {"QWENMTP_PLE_THREADS": "5"})
    assert Settings.from_env().ple.threads == 5
    assert Settings.from_env("ar", None, ple_threads=6).ple.threads == 6


def test_settings_are_frozen() -> None:
    settings = Settings.resolve({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.ple.threads = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.ple = settings.ple
    with pytest.raises(TypeError):
        settings.provenance["ple.threads"] = None


def test_defaults_are_the_groups_own() -> None:
    settings = Settings.resolve({})
    for group, kind in GROUPS.items():
        assert getattr(settings, group) == kind()
    for spec in FIELDS.values():
        assert spec.kind.of_value(spec.default) == spec.default, spec.name
        assert type(spec.kind.of_value(spec.default)) is type(spec.default), spec.name


def test_the_table_is_sound() -> None:
    assert len(FIELDS) <= 60
    assert len({spec.env for spec in FIELDS.values()}) == len(FIELDS)
    spellings = [{s.name, s.name.replace(".", "_"), s.env.lower()} for s in FIELDS.values()]
    assert len(set().union(*spellings)) == sum(map(len, spellings))
    assert not set(LEGACY) & set(NO_EFFECT)
    assert {row.field for row in LEGACY.values()} <= set(FIELDS)
    assert {row.letter for row in LEGACY.values()} <= set(CLASSES)
    assert [name for name, spec in FIELDS.items() if spec.kill] == ["gdn.compile"]


def test_json_lists_every_field_and_every_name_without_effect() -> None:
    settings = Settings.resolve({"QWENMTP_PLE_THREADS": "2", "MTPLX_NGRAM_PREFETCH": "0", "MTPLX_FUSED_HC_V3": "0"})
    out = json.loads(json.dumps(settings.as_json(), allow_nan=False))
    assert set(out["fields"]) == set(FIELDS)
    assert out["fields"]["ple.threads"] == {
        "source": "QWENMTP_*",
        "name": "QWENMTP_PLE_THREADS",
        "raw": "2",
        "value": 2,
        "default": 8,
        "env": "QWENMTP_PLE_THREADS",
        "overruled": [{"source": "MTPLX_*", "name": "MTPLX_NGRAM_PREFETCH", "raw": "0", "value": 0}],
    }
    assert set(out["no_effect"]) == {"MTPLX_" + name for name in NO_EFFECT}
    assert all(row["reason"] for row in out["no_effect"].values())
    assert {name: row["set"] for name, row in out["no_effect"].items() if row["set"] is not None} == {
        "MTPLX_FUSED_HC_V3": "0"
    }
