"""settings.py against MTPLX 2.12.2: its readings of texts, its compile pair, its server's policy in 268 cases."""

import json
from pathlib import Path

import pytest

from qwenmtp.errors import ConfigError
from qwenmtp.settings import Settings
from qwenmtp.settings_legacy import LEGACY, NO_EFFECT, NOTHING
from qwenmtp.settings_table import FIELDS

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "settings"
POLICY = json.loads((GOLDEN / "server_policy.json").read_text())
GATES = json.loads((GOLDEN / "gate_parse.json").read_text())
FLASH_NEXT = {"model_type": "qwen4_exp", "text_config": POLICY["text_config"]}


def value(settings: Settings, field: str) -> object:
    group, name = field.split(".")
    return getattr(getattr(settings, group), name)


def values(settings: Settings) -> dict[str, object]:
    return {field: value(settings, field) for field in FIELDS}


@pytest.mark.parametrize("name", sorted(set(GATES["parse"]) - set(NO_EFFECT)))
def test_legacy_texts_mean_what_the_reference_reads(name: str) -> None:
    row, table = LEGACY[name], GATES["parse"][name]
    for word, reference in table.items():
        if word == "<unset>":
            continue
        try:
            ours = row.read(word)
        except ValueError:
            ours = "raises"
        if ours is NOTHING:
            assert reference == table["<unset>"], word
            continue
        if row.letter == "E":
            reference = reference.removesuffix("!")
        if row.field == "session.idle_ttl_s" and reference == "never":
            reference = 0.0
        if row.field == "decode.history_policy" and word == "auto":
            reference = "auto"  # the reader answers for a prompt of no tokens
        assert ours == reference, word


# Variables that the reference reads inside long functions: its source, by hand.
IN_PASSING = {
    "ASYNC_AR": {"1": True, " TRUE ": True, "enabled": False, "": False, "0": False},
    "QWEN4_RELAXED_DRAFT_TIES": {"yes": True, "2": False, "": False},
    "QWEN4_BLOCK_VERIFY": {"1": True, "2": False, "": False},
    "ALLOW_SWAP": {"on": True, "": False},
    "NGRAM_RESIDENT": {"1": "resident", "0": "ssd", "": "ssd"},
    "NGRAM_STAGE": {"0": False, "false": True, "": True, " 0": True},
    "NGRAM_PREFETCH": {"0": 0, "1": NOTHING, "off": NOTHING},
    "NGRAM_HOT_MB": {"0": 0, "5": 5 * 2**20, "-1": 0, "": NOTHING, "5M": NOTHING},
    "NGRAM_ROW_FILE": {"": NOTHING, "/a": "/a"},
    "MTP_HISTORY_LIVE_RESET_THRESHOLD": {"0": 0, "-5": 0, "7": 7, "x": NOTHING},
    "PREFILL_CHUNK_SIZE_DENSE": {"0": 1, "9": 9, "auto": NOTHING},
    "SSD_SESSION_CACHE": {"": "off", "OFF": "off", "write-only": "write-only", "on": "on", "1": "on"},
    "SSD_SESSION_CACHE_DIR": {"": NOTHING, "/a": "/a"},
    "SSD_SESSION_CACHE_MIN_PREFIX_TOKENS": {"0": 1, "7": 7, "": NOTHING},
}
# Edges that the recorded spellings do not reach.
EDGES = {
    "GDN_BOUNDARY_MAX": {"1": 2, "8": 8, "9": 8},
    "CONTEXT_COPY": {"FALSE": True, "Off": True},
    "SESSION_BANK_MAX_ENTRIES": {"2147483648": NOTHING},
    "SESSION_BANK_IDLE_TTL_S": {"inf": 0.0, "-inf": 0.0, "nan": NOTHING},
    "SESSION_BANK_ACTIVE_PIN_TTL_S": {"inf": 1e9, "nan": 0.0},
    "SSD_WRITE_BUDGET_PER_HOUR": {"9999999T": 2**62, "inf": NOTHING},
    "NGRAM_PREWARM": {"0.5": 2**29, "1e30": "raises", "nan": "raises", "12 GiB": 12 * 2**30, "0G": "off"},
}


@pytest.mark.parametrize(("name", "texts"), [*IN_PASSING.items(), *EDGES.items()])
def test_legacy_texts_of_variables_read_in_passing(name: str, texts: dict) -> None:
    for text, expected in texts.items():
        try:
            ours = LEGACY[name].read(text)
        except ValueError:
            ours = "raises"
        assert ours == expected, text


def test_every_legacy_variable_is_compared() -> None:
    assert (set(GATES["parse"]) - set(NO_EFFECT)) | set(IN_PASSING) == set(LEGACY)


def test_every_legacy_variable_reaches_its_field() -> None:
    for row in LEGACY.values():
        for text in ("0", "1", "off", "7"):
            try:
                expected = row.read(text)
            except ValueError:
                continue
            settings = Settings.resolve({"MTPLX_" + row.name: text})
            if expected is NOTHING:
                assert settings.provenance[row.field].source == "default"
            else:
                assert value(settings, row.field) == expected
                assert settings.provenance[row.field].stated.raw == text


def test_a_legacy_text_that_the_reference_refuses_names_variable_and_forms() -> None:
    with pytest.raises(ConfigError, match="MTPLX_QWEN4_PLE_PREFILL_LOOKAHEAD is 'enabled', expected on by 1, true"):
        Settings.resolve({"MTPLX_QWEN4_PLE_PREFILL_LOOKAHEAD": "enabled"})
    with pytest.raises(ConfigError, match="MTPLX_MTP_HISTORY_POLICY is 'x', expected cycle, committed"):
        Settings.resolve({"MTPLX_MTP_HISTORY_POLICY": "x"})


@pytest.mark.parametrize(("compiled_gdn", "qwen4exp", "state"), GATES["compile_pair"])
def test_the_compile_pair(compiled_gdn: str | None, qwen4exp: str | None, state: str) -> None:
    env = {"MTPLX_COMPILED_GDN": compiled_gdn, "MTPLX_QWEN4EXP_COMPILE": qwen4exp}
    settings = Settings.resolve({name: text for name, text in env.items() if text is not None})
    # "off" is the reference's default where neither variable is set; its server and this package turn it on then.
    assert settings.gdn.compile == {"on": "on", "off!": "off", "off": "on"}[state]
    assert settings.provenance["gdn.compile"].source == ("default" if state == "off" else "MTPLX_*")


def test_the_compile_pair_has_49_combinations() -> None:
    assert len({(a, b) for a, b, _ in GATES["compile_pair"]}) == 49


def reference_value(name: str, case: dict) -> object:
    """What the reference's reader makes of a variable in a case: the operator's text, else the server's stamp."""
    stamp = {k: v for k, v in POLICY["stamped"][case["mode"]].items() if k not in case["removed"]}
    texts = {**stamp, **case["env"]}
    if name in ("MTPLX_COMPILED_GDN", "MTPLX_QWEN4EXP_COMPILE"):
        pair = [texts.get("MTPLX_COMPILED_GDN"), texts.get("MTPLX_QWEN4EXP_COMPILE")]
        return next(state for a, b, state in GATES["compile_pair"] if [a, b] == pair).removesuffix("!")
    if name == "MTPLX_QWEN4_RELAXED_DRAFT_TIES":
        return texts.get(name, "").strip().lower() in ("1", "true", "yes", "on")
    return GATES["parse"][name.removeprefix("MTPLX_")][texts.get(name, "<unset>")]


def own_value(name: str, settings: Settings) -> object:
    return value(settings, LEGACY[name.removeprefix("MTPLX_")].field)


KEYS = sorted({name for case in POLICY["cases"] for name in case["env"]} - {"MTPLX_AR_PIPELINE"})


def test_the_oracle_has_268_cases_of_33_keys() -> None:
    assert len(POLICY["cases"]) == 268
    assert len(KEYS) == 33
    ported = [key for key in KEYS if key.removeprefix("MTPLX_") in LEGACY]
    assert len(ported) == 7
    assert {key.removeprefix("MTPLX_") for key in KEYS} <= set(LEGACY) | set(NO_EFFECT)


@pytest.mark.parametrize("case", POLICY["cases"], ids=lambda c: f"{c['mode']}-{c['env']}")
def test_server_policy_case(case: dict) -> None:
    settings = Settings.resolve(case["env"], case["mode"], FLASH_NEXT)
    for key in KEYS:
        if key.removeprefix("MTPLX_") in LEGACY:
            assert own_value(key, settings) == reference_value(key, case), key
    for name in case["env"]:
        if name.removeprefix("MTPLX_") in NO_EFFECT:
            assert values(settings) == values(Settings.resolve({}, case["mode"], FLASH_NEXT))
            assert settings.no_effect == case["env"]


def test_the_pipeline_flag_is_recorded_and_changes_nothing() -> None:
    for text in ("0", "1", "", "garbage"):
        settings = Settings.resolve({"MTPLX_AR_PIPELINE": text})
        out = settings.as_json()
        assert out["fields"] == Settings.resolve({}).as_json()["fields"]
        assert out["no_effect"]["MTPLX_AR_PIPELINE"]["set"] == text
        assert "obsolete" in out["no_effect"]["MTPLX_AR_PIPELINE"]["reason"]
