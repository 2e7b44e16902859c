"""The memory plan: arithmetic against known sizes, against the allocator, and its refusals."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import qwenmtp
from qwenmtp.errors import InsufficientMemory, InvalidRequest
from qwenmtp.plan import memory_plan, prewarm_bytes, table_bytes
from qwenmtp.weights import ModelFiles, open_model_files

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
GIB = 1 << 30

RELEASED: dict[str, Any] = {
    "vocab_size": 248320,
    "hidden_size": 2560,
    "max_position": 262144,
    "n_heads": 24,
    "n_kv_heads": 2,
    "head_dim": 256,
    "index_dim": 128,
    "index_ratio": 4,
    "gdn_key_heads": 16,
    "gdn_value_heads": 48,
    "gdn_key_dim": 128,
    "gdn_value_dim": 128,
    "gdn_conv_kernel": 4,
    "top_k": 10,
    "expert_dim": 640,
    "hc_count": 4,
    "ple_conv_kernel": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "full_attention": [i % 4 == 3 for i in range(48)],
    "ple_layers": [1],
}


def released(weights: int = 70 * GIB) -> ModelFiles:
    rows = 320_001_536
    tensors = [
        ("ngram.weight", "U32", (rows, 20), 0, 0),
        ("ngram.scales", "BF16", (rows, 5), 0, 0),
        ("ngram.biases", "BF16", (rows, 5), 0, 0),
        ("language_model.model.codes", "U32", (weights // 4,), 0, 0),
        ("language_model.model.visual.blocks", "BF16", (1 << 30,), 0, 0),
    ]
    return ModelFiles(Path(), {}, RELEASED, "pack", [], tensors, {})


def test_the_released_model_by_the_numbers_of_the_reference() -> None:
    """sessions.md 1.1: 115,642,384 recurrent bytes, 30,784 bytes a token; 3.1: a table of 32.0 GB."""
    plan = memory_plan(released(), context=262144, dtype="bfloat16", budget=128 * GIB)
    assert table_bytes(released()) == 32_000_153_600
    ids, tip = 16, (248320 + 10240) * 2
    assert plan.recurrent == 115_642_384 - ids + tip
    assert plan.kv == 262144 * 30_784
    assert plan.weights == 70 * GIB
    assert plan.table == 0
    assert plan.fits
    assert plan.total < plan.peak


def test_buffers_grow_by_doubling_from_256_rows() -> None:
    row = 30_784
    for context, capacity in ((1, 256), (256, 256), (257, 512), (4097, 8192)):
        assert memory_plan(released(), context=context, dtype="bfloat16", budget=1).kv == capacity * row
    plain = memory_plan(released(), context=256, dtype="bfloat16", budget=1, speculate=False)
    assert plain.kv == 256 * row * 12 // 13


@pytest.mark.parametrize(("memory", "residency"), [(128, "ssd"), (192, "resident")])
def test_auto_is_resident_where_the_full_context_and_a_bank_still_fit(memory: int, residency: str) -> None:
    """sessions.md 1.12 and 3.5: 128 GiB stream, 192 GiB keep the table."""
    plan = memory_plan(released(), context=4096, dtype="bfloat16", residency="auto", budget=memory * GIB * 3 // 4)
    assert plan.residency == residency
    assert plan.table == (32_000_153_600 if residency == "resident" else 0)
    assert plan.context == 4096


def test_what_does_not_fit_is_refused_with_the_plan() -> None:
    plan = memory_plan(released(), context=262144, dtype="bfloat16", residency="resident", budget=96 * GIB)
    assert not plan.fits
    with pytest.raises(InsufficientMemory, match=str(plan.peak)) as refused:
        plan.check()
    assert refused.value.details == plan.to_json()
    assert json.loads(json.dumps(plan.to_json()))["fits"] is False
    exact = memory_plan(released(), context=262144, dtype="bfloat16", residency="resident", budget=plan.peak)
    exact.check()
    short = memory_plan(released(), context=262144, dtype="bfloat16", residency="resident", budget=plan.peak - 1)
    assert not short.fits


@pytest.mark.parametrize("context", [0, -1, 262145])
def test_a_context_out_of_range_is_refused(context: int) -> None:
    with pytest.raises(InvalidRequest, match="expected 1"):
        memory_plan(released(), context=context, dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_the_plan_agrees_with_the_allocator_within_five_percent(dtype: Any) -> None:
    files = open_model_files(DEMO)
    mx.clear_cache()
    before = mx.get_active_memory()
    with qwenmtp.load(DEMO, dtype=dtype) as model:
        loaded = mx.get_active_memory() - before
        # A prompt of one chunk leaves one record, before its last token.
        plan = memory_plan(files, context=250, dtype=dtype, boundaries=1)
        assert abs(loaded - plan.weights) <= 0.05 * plan.weights
        mx.reset_peak_memory()
        session = model.session()
        prompt = model.tokenizer.encode("import os\n" * 200)[:220]
        for _ in session.generate(prompt, max_tokens=20, ignore_stop=True):
            pass
        assert session.state()["boundaries"] == [219]
        held = mx.get_active_memory() - before
        in_allocator = plan.total - plan.hot_rows
        assert abs(held - in_allocator) <= 0.05 * in_allocator
        assert mx.get_peak_memory() - before <= memory_plan(files, context=250, dtype=dtype, device="cpu").peak


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("chunk", [512, 2048])
def test_a_prefill_stays_below_the_planned_peak(dtype: Any, chunk: int) -> None:
    """MLX's CPU back end allocates all eight layers of a chunk at once."""
    with qwenmtp.load(DEMO, dtype=dtype, prefill_chunk=chunk) as model:
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        session = model.session()
        for _ in session.generate([i * i % 4096 for i in range(2500)], max_tokens=0):
            pass
        taken = mx.get_peak_memory() - before
        plan = model.plan(2500)
    assert taken <= plan.peak - plan.weights - plan.hot_rows
    assert plan.transients <= 3 * (taken - session.state()["bytes"])


def test_a_resident_table_that_does_not_fit_is_refused_at_load() -> None:
    with pytest.raises(InsufficientMemory) as refused:
        qwenmtp.load(DEMO, dtype="float32", ple_residency="resident", memory_budget=50 << 20)
    assert refused.value.details["residency"] == "resident"
    with qwenmtp.load(
        DEMO, dtype="float32", ple_residency="resident", memory_budget=50 << 20, memory_allow_overcommit=True
    ) as model:
        assert model._engine.core.ple_stats[0]["residency"] == "resident"


def test_weights_that_do_not_fit_are_refused_at_load() -> None:
    with pytest.raises(InsufficientMemory) as refused:
        qwenmtp.load(DEMO, dtype="float32", memory_budget=50 << 20)
    assert refused.value.details["residency"] == "ssd"


def test_a_request_that_does_not_fit_is_refused_before_prefill_with_the_plan() -> None:
    files = open_model_files(DEMO)
    plans = [memory_plan(files, context=n, dtype="float32", budget=1, hot_bytes=0, device="cpu") for n in (2048, 4096)]
    budget = (plans[0].peak + plans[1].peak) // 2
    with qwenmtp.load(DEMO, dtype="float32", memory_budget=budget, ple_hot_bytes=0) as model:
        session = model.session()
        prompt = [5] * 2000
        with pytest.raises(InsufficientMemory, match="2049 tokens") as refused:
            session.generate(prompt, max_tokens=49)
        assert refused.value.details == model.plan(2049).to_json()
        assert session.ids == []
        list(session.generate(prompt[:10], max_tokens=2, ignore_stop=True))
        session.generate(prompt, max_tokens=48)
        with pytest.raises(InsufficientMemory):
            session.generate(prompt, max_tokens=49)
        held = model.session(memory_allow_overcommit=True)
        held.generate(prompt, max_tokens=49)


def test_the_allocators_limit_is_set_at_load() -> None:
    before = mx.set_memory_limit(1 << 40)
    try:
        qwenmtp.load(DEMO, dtype="float32").close()
        assert mx.set_memory_limit(1 << 40) == 1 << 40
        qwenmtp.load(DEMO, dtype="float32", memory_limit="3GiB").close()
        assert mx.set_memory_limit(before) == 3 << 30
    finally:
        mx.set_memory_limit(before)


@pytest.mark.parametrize(
    ("wish", "budget", "expected"),
    [("all", 1, 1000), ("off", 1 << 60, 0), (300, 1, 300), (5000, 1, 1000), ("auto", 1 << 60, 1000), ("auto", 1, 0)],
)
def test_bytes_to_prewarm(wish: Any, budget: int, expected: int) -> None:
    plan = memory_plan(released(), context=1000, dtype="bfloat16", budget=budget)
    assert prewarm_bytes(plan, 1000, wish) == expected
    resident = memory_plan(released(), context=1000, dtype="bfloat16", residency="resident", budget=budget)
    assert prewarm_bytes(resident, 1000, wish) == 0


def test_auto_prewarm_leaves_the_plan_and_six_gibibytes_free() -> None:
    plan = memory_plan(released(), context=1000, dtype="bfloat16", budget=100 * GIB)
    assert prewarm_bytes(plan, 1 << 50, "auto") == 100 * GIB - plan.peak - 6 * GIB
