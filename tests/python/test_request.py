"""request.py: what may be asked for, and how settings and sampling become the core's options."""

import math
from typing import Any

import pytest

from qwenmtp.errors import InvalidRequest
from qwenmtp.request import check_limits, check_mode, core_options
from qwenmtp.sampling import SamplingParams
from qwenmtp.settings import Settings


def options(env: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    request = {"mode": "mtp", "depth": 3, "n_prompt": 100, "max_tokens": 50, "stops": (7,), "logprobs": None}
    sampling = SamplingParams(seed=5).resolve({}, changes.pop("draft_sampler", None))
    settings = Settings.resolve({f"QWENMTP_{k}": v for k, v in (env or {}).items()})
    return core_options(settings, sampling, **(request | {"deadline": None} | changes))


@pytest.mark.parametrize("mode", ["mtp", "ar"])
@pytest.mark.parametrize("depth", [1, 3, 5, "auto"])
def test_modes_and_depths(mode: str, depth: Any) -> None:
    check_mode(mode, depth, has_mtp=True)
    out = options(mode=mode, depth=depth)
    assert out["speculate"] == (mode == "mtp")
    assert (out["depth"], out["auto_depth"]) == ((5, True) if depth == "auto" else (depth, False))


@pytest.mark.parametrize(
    ("mode", "depth", "field"),
    [("fast", 3, "mode"), (None, 3, "mode"), *[("ar", d, "depth") for d in (0, 6, -1, True, 2.0, "3", None)]],
)
def test_other_modes_and_depths_are_refused(mode: Any, depth: Any, field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{field} .*, expected") as refused:
        check_mode(mode, depth, has_mtp=True)
    assert refused.value.details == {"field": field}


def test_drafting_needs_a_head() -> None:
    check_mode("ar", 3, has_mtp=False)
    with pytest.raises(InvalidRequest, match="no MTP head"):
        check_mode("mtp", 3, has_mtp=False)


@pytest.mark.parametrize("limits", [(0, None, None), (1, 0, 0), (10**6, 128, 0.5), (1, None, 3)], ids=lambda v: str(v))
def test_limits_in_range(limits: tuple[Any, Any, Any]) -> None:
    check_limits(*limits)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [-1, 1.0, True, "5", None]),
        ("logprobs", [-1, 129, True, 1.5, "1"]),
        ("deadline", [-0.1, math.nan, math.inf, True, "1"]),
    ],
)
def test_limits_of_another_type_or_range_are_refused(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest, match=f"{field} ") as refused:
            check_limits(**({"max_tokens": 1, "logprobs": None, "deadline": None} | {field: value}))
        assert refused.value.details == {"field": field}


def test_the_familys_sampler_where_nobody_says_anything() -> None:
    out = options()
    assert out["target"] == (1.0, 0.95, 20, 0.0, 0.0)
    assert out["draft"] == (1.0, 0.95, 20, 0.0, 0.0)
    assert out["seed"] == 5
    assert (out["max_tokens"], out["stops"], out["logprobs"]) == (50, [7], -1)
    assert "deadline" not in out


def test_a_packs_draft_sampler_reaches_the_drafts_alone() -> None:
    out = options(draft_sampler={"temperature": 0.6, "top_k": 5})
    assert out["target"] == (1.0, 0.95, 20, 0.0, 0.0)
    assert out["draft"] == (0.6, 0.95, 5, 0.0, 0.0)


def test_logprobs_and_deadline_pass_through() -> None:
    out = options(logprobs=0, deadline=2.5)
    assert (out["logprobs"], out["deadline"]) == (0, 2.5)


@pytest.mark.parametrize(
    ("policy", "n_prompt", "history", "window"),
    [
        ("committed", 10**6, "committed", 0),
        ("cycle", 10**6, "cycle", 0),
        ("last_window", 1, "committed", 99),
        ("auto", 16_383, "committed", 0),
        ("auto", 16_384, "committed", 99),
    ],
)
def test_history_policies(policy: str, n_prompt: int, history: str, window: int) -> None:
    out = options({"MTP_HISTORY_POLICY": policy, "MTP_HISTORY_WINDOW": "99"}, n_prompt=n_prompt)
    assert (out["history"], out["history_window"]) == (history, window)


@pytest.mark.parametrize(
    ("name", "text", "option", "value"),
    [
        ("VERIFY_CAPTURE_COMMIT", "off", "lane", "reforward"),
        ("VERIFY_BLOCK", "on", "block_verify", True),
        ("CONTEXT_COPY", "off", "context_copy", False),
        ("MTP_HISTORY_RESET_ROWS", "7", "history_reset_rows", 7),
        ("RELAXED_DRAFT_TIES", "on", "relaxed_draft_ties", True),
        ("ASYNC_EVAL", "on", "async", True),
        ("PREFILL_CHUNK", "9", "prefill_chunk", 9),
        ("PREFILL_FUSED_SUFFIX_MAX", "8", "fused_suffix", 8),
    ],
)
def test_every_switch_reaches_its_option_alone(name: str, text: str, option: str, value: Any) -> None:
    plain, changed = options(), options({name: text})
    assert plain[option] != value
    assert changed == plain | {option: value}
