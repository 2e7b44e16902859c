"""sampling.py: what a request may say, and the plain numbers the core gets for it."""

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qwenmtp.errors import InvalidRequest, ModelFormatError
from qwenmtp.sampling import SamplingParams

DEMO = {"eos_token_id": [2, 0], "do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 7}


def test_family_defaults_where_nobody_says_anything() -> None:
    got = SamplingParams(seed=0).resolve()
    assert (got.temperature, got.top_p, got.top_k) == (1.0, 0.95, 20)
    assert (got.presence_penalty, got.frequency_penalty) == (0.0, 0.0)


def test_pack_fills_open_fields_only() -> None:
    got = SamplingParams(temperature=0.3).resolve({**DEMO, "presence_penalty": 1.5})
    assert (got.temperature, got.top_p, got.top_k, got.presence_penalty) == (0.3, 0.9, 7, 1.5)


def test_an_explicit_zero_is_not_an_open_field() -> None:
    got = SamplingParams(temperature=0, top_p=0, top_k=0, presence_penalty=0).resolve({**DEMO, "presence_penalty": 1})
    assert (got.temperature, got.top_p, got.top_k, got.presence_penalty) == (0.0, 0.0, 0, 0.0)
    assert got.greedy
    assert not SamplingParams(temperature=0.1).resolve().greedy


@pytest.mark.parametrize(
    ("pack", "temperature"),
    [
        ({"do_sample": False}, 0.0),
        ({"do_sample": False, "temperature": 0.7}, 0.7),
        ({"do_sample": True}, 1.0),
        ({"temperature": None}, 1.0),
    ],
)
def test_a_pack_that_does_not_sample_is_greedy(pack: dict, temperature: float) -> None:
    assert SamplingParams().resolve(pack).temperature == temperature


BAD = {
    "temperature": [-0.1, math.nan, math.inf, -math.inf, True, "0.6", [1], 1e-31, 10**400, 1j],
    "top_p": [-0.01, 1.01, math.nan, False, "1", b"1"],
    "top_k": [-1, 2**31, True, 5.0, "5", math.nan, np.float32(3)],
    "presence_penalty": [-2.01, 2.01, math.nan, True, "0"],
    "frequency_penalty": [-2.01, 2.01, math.inf, False, "0"],
    "seed": [-1, 1.0, True, "1", math.nan],
    "draft": ["greedy", 0.5, {"temperature": 0}, False],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD.items() for v in values])
def test_a_value_out_of_type_or_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=rf"^\[sampling.params\] {field} is ") as caught:
        SamplingParams(**{field: value})
    assert caught.value.code == "invalid_request"
    assert caught.value.details["field"] == field
    json.dumps(caught.value.to_json(), allow_nan=False)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f in ("temperature", "top_p", "top_k") for v in BAD[f]])
def test_a_bad_pack_is_the_packs_fault(field: str, value: object) -> None:
    with pytest.raises(ModelFormatError, match=rf"^\[generation_config.json\] {field} is "):
        SamplingParams().resolve({field: value})


def test_a_long_value_is_shown_short() -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(temperature="x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("field", "value", "plain"),
    [
        ("temperature", np.float32(0.5), 0.5),
        ("temperature", 1, 1.0),
        ("temperature", 1e-30, 1e-30),
        ("top_p", Fraction(1, 4), 0.25),
        ("top_k", np.int64(5), 5),
        ("top_k", 2**31 - 1, 2**31 - 1),
        ("seed", np.uint64(2**64 - 1), 2**64 - 1),
        ("seed", 2**200, 2**200),
        ("presence_penalty", -2, -2.0),
    ],
)
def test_numbers_of_any_kind_become_plain(field: str, value: object, plain: float) -> None:
    got = getattr(SamplingParams(**{field: value}), field)
    assert got == plain
    assert type(got) is type(plain)


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().temperature = 1.0


def test_an_open_seed_is_drawn_and_reported() -> None:
    seeds = {SamplingParams().resolve().seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(seed >= 0 for seed in seeds)
    assert SamplingParams(seed=7).resolve().seed == 7


@example(2**192 - 1)
@given(st.one_of(st.integers(0, 2**70), st.sampled_from([0, 2**32 - 1, 2**32, 2**64, 2**128, 2**192 - 1])))
def test_seed_words_are_numpys(seed: int) -> None:
    words = SamplingParams(seed=seed).resolve().seed_words
    assert sum(word << (32 * i) for i, word in enumerate(words)) == seed
    assert len(words) == max(1, math.ceil(seed.bit_length() / 32))
    assert all(0 <= word < 2**32 for word in words)
    whole, split = np.random.SeedSequence(seed), np.random.SeedSequence(list(words))
    assert list(whole.generate_state(4)) == list(split.generate_state(4))


PACK_DRAFT = {"temperature": 0.7, "top_p": 0.8, "top_k": 9}


@pytest.mark.parametrize(
    ("params", "recommended", "expected"),
    [
        (SamplingParams(temperature=0.5), None, (0.5, 0.95, 20)),
        (SamplingParams(temperature=0.5, draft="mirror"), PACK_DRAFT, (0.5, 0.95, 20)),
        (SamplingParams(temperature=0.5), PACK_DRAFT, (0.7, 0.8, 9)),
        (SamplingParams(temperature=0.5), {"top_k": 9}, (0.5, 0.95, 9)),
        (SamplingParams(temperature=0), PACK_DRAFT, (0.0, 0.95, 20)),
        (SamplingParams(temperature=0, draft="mirror"), PACK_DRAFT, (0.0, 0.95, 20)),
        (SamplingParams(temperature=0, draft=SamplingParams(temperature=0.4)), None, (0.4, 0.95, 20)),
        (SamplingParams(temperature=0.5, draft=SamplingParams(temperature=0)), PACK_DRAFT, (0.0, 0.95, 20)),
        (SamplingParams(top_p=0.5, draft=SamplingParams(top_k=1)), PACK_DRAFT, (1.0, 0.5, 1)),
    ],
)
def test_draft_sampler_resolution(params: SamplingParams, recommended: dict | None, expected: tuple) -> None:
    got = params.resolve(None, recommended)
    assert (got.draft_temperature, got.draft_top_p, got.draft_top_k) == expected


@pytest.mark.parametrize(
    "draft",
    [
        SamplingParams(presence_penalty=0),
        SamplingParams(frequency_penalty=0),
        SamplingParams(seed=0),
        SamplingParams(draft="mirror"),
    ],
)
def test_a_draft_sampler_has_three_fields(draft: SamplingParams) -> None:
    with pytest.raises(InvalidRequest, match="expected only temperature, top_p and top_k"):
        SamplingParams(draft=draft)


def test_a_bad_recommended_draft_sampler_is_the_packs_fault() -> None:
    with pytest.raises(ModelFormatError, match=r"^\[draft sampler of the pack\] top_p is 2"):
        SamplingParams().resolve(None, {"top_p": 2})


def test_json_holds_every_number() -> None:
    got = SamplingParams(seed=3, draft=SamplingParams(temperature=0)).resolve(DEMO)
    assert json.loads(json.dumps(got.to_json())) == {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 7,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 3,
        "draft_temperature": 0.0,
        "draft_top_p": 0.9,
        "draft_top_k": 7,
    }
