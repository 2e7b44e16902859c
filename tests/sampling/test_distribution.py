"""From a row to its distribution, against an independent NumPy reading of decode.md section 1."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import _qwenmtp_testing as core
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwenmtp.errors import NonFiniteLogits

ORACLE = Path(__file__).resolve().parents[2] / "tools" / "oracle" / "decode"
SIZES = (1, 7, 20, 81, 511, 512, 513, 1024, 5000)
# The reference reads mass in float32; see tools/replay.py.
MASS = 3e-7


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    sys.path.insert(0, str(ORACLE))
    try:
        import rules
    finally:
        sys.path.remove(str(ORACLE))
    return rules


def config(
    temperature: float, top_p: float, top_k: int, presence: float = 0.0, frequency: float = 0.0
) -> dict[str, Any]:
    return {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "presence_penalty": presence,
        "frequency_penalty": frequency,
    }


def reader(cfg: dict[str, Any]) -> Any:
    return core.Reader(core.Params(*cfg.values()))


def support(dist: Any) -> tuple[list[int], np.ndarray]:
    mass = np.array(dist.mass)
    if dist.ids:
        return list(dist.ids), mass
    kept = np.flatnonzero(mass > 0)
    return kept.tolist(), mass[kept]


def bfloat16_bits(row: np.ndarray) -> np.ndarray:
    bits = row.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ties", [False, True], ids=["smooth", "ties"])
@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(0.6, 0.95, 20), (1.0, 1.0, 20), (1.3, 0.5, 600), (1.0, 0.9, 0)]
)
def test_rows_of_every_size_equal_the_oracle(
    rules: ModuleType, size: int, ties: bool, temperature: float, top_p: float, top_k: int
) -> None:
    rng = np.random.default_rng(size)
    row = (rng.standard_normal(size) * 3).astype(np.float32)
    row = np.round(row) if ties else row
    cfg = config(temperature, top_p, top_k)
    want = rules.shape(row, cfg)
    ids, mass = support(reader(cfg).distribution(row))
    kept = want.probs > 0
    assert ids == [int(i) for i in want.ids[kept]]
    assert np.max(np.abs(mass - want.probs[kept])) <= MASS


@pytest.mark.parametrize(
    ("top_p", "want"),
    [
        (0.9, {0: 0.66524094, 1: 0.24472848, 2: 0.09003057}),
        (0.8, {0: 0.73105856, 1: 0.26894144}),
        (0.5, {0: 1.0}),
        (1e-9, {0: 1.0}),
        (1.0, {0: 0.66524096, 1: 0.24472847, 2: 0.09003057}),
        (0.0, {0: 0.66524096, 1: 0.24472847, 2: 0.09003057}),
    ],
)
def test_worked_example_of_the_nucleus(top_p: float, want: dict[int, float]) -> None:
    dist = reader(config(1.0, top_p, 3)).distribution(np.array([2, 1, 0, -1], np.float32))
    assert dist.ids == list(want)
    assert np.allclose(dist.mass, list(want.values()), atol=1e-7)  # float32 masses, printed to eight places


def test_ties_at_the_cutoff_keep_the_lowest_ids_over_all_blocks() -> None:
    row = np.zeros(4096, np.float32)
    row[[4000, 17]] = 1.0
    dist = reader(config(1.0, 1.0, 6)).distribution(row)
    assert dist.ids == [0, 1, 2, 3, 17, 4000]


def test_a_two_byte_row_reads_as_its_widened_values() -> None:
    row = (np.random.default_rng(3).standard_normal(2000) * 4).astype(np.float32)
    read = reader(config(0.6, 0.95, 20))
    bits = bfloat16_bits(row)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    half = row.astype(np.float16)
    for narrow, dtype, same in ((bits, "bfloat16", wide), (half.view(np.uint16), "float16", half.astype(np.float32))):
        a, b = read.distribution(narrow, dtype), read.distribution(same)
        assert (a.ids, a.mass) == (b.ids, b.mass)
        assert read.best(narrow, dtype) == int(np.argmax(same))


def test_float16_subnormals_and_infinities_widen_exactly() -> None:
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    half = half[np.isfinite(half)]
    read = core.Reader(core.Params(1.0, 1.0, 0, 0.0, 0.0))
    want = read.distribution(half.astype(np.float32))
    assert read.distribution(half.view(np.uint16), "float16").mass == want.mass
    assert read.best(np.array([1.0, -np.inf], np.float16).view(np.uint16), "float16") == 0
    with pytest.raises(NonFiniteLogits, match="nan=0, inf=1, vocab=2"):
        read.best(np.array([1.0, np.inf], np.float16).view(np.uint16), "float16")


@given(
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    presence=st.floats(-3, 3),
    frequency=st.floats(-3, 3),
    counts=st.dictionaries(st.integers(0, 31), st.integers(0, 9), max_size=8),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_penalties_round_in_the_rows_own_dtype(
    rules: ModuleType, dtype: str, presence: float, frequency: float, counts: dict[int, int], seed: int
) -> None:
    row = rules.round_to((np.random.default_rng(seed).standard_normal(32) * 3).astype(np.float32), dtype)
    cfg = config(0.0, 0.95, 20, presence, frequency)
    want = rules.penalised(row, dtype, cfg, counts, None)
    narrow = {"float32": row, "bfloat16": bfloat16_bits(row), "float16": row.astype(np.float16).view(np.uint16)}[dtype]
    assert reader(cfg).best(narrow, dtype, counts) == int(np.argmax(want))
    top = config(1.0, 1.0, 32, presence, frequency)
    _, mass = support(reader(top).distribution(narrow, dtype, counts))
    expected = np.exp(want.astype(np.float64) - want.max())
    assert np.allclose(mass, expected / expected.sum(), atol=1e-12)  # float64 on both sides


def test_candidates_decline_what_only_the_row_can_tell() -> None:
    """A value that a device may read as zero, one that is not finite, a row whose sum is NaN."""
    read = reader(config(1.0, 0.95, 2))
    fine = {"ids": [3, 1, 2], "values": [2.0, 1.0, 0.5], "ties": 1, "max": 2.0, "exp_sum": 3.0, "size": 100}
    assert read.distribution_from(**fine).ids == [1, 3]
    assert read.distribution_from(**fine | {"values": [2.0, 1.0, 0.0]}).ids == [1, 3]
    for second in (0.0, 1e-39, -1e-39, -np.inf):
        assert read.distribution_from(**fine | {"values": [2.0, second, -np.inf]}) is None
    for name in ("max", "exp_sum"):
        for value in (np.nan, np.inf):
            assert read.distribution_from(**fine | {name: value}) is None
    # At T = 0.01 a subnormal logit is 100 times as large in the scaled row.
    cold = reader(config(0.01, 0.95, 1))
    assert cold.distribution_from(**fine | {"values": [2e-36, -1.0, -2.0], "max": 2e-36}).ids == [3]
    assert cold.distribution_from(**fine | {"values": [1e-36, -1.0, -2.0], "max": 1e-36}) is None
    assert reader(config(1e-13, 0.95, 1)).distribution_from(**fine) is None


def test_ties_outside_the_candidates_count_for_the_rounding_of_their_mass() -> None:
    """Without a nucleus a row with 4 k values down to the cutoff has its masses rounded to float32."""
    read = reader(config(1.0, 1.0, 3))
    row = np.full(100, 1.1, np.float32)
    row[50] = 3.3
    base = {"ids": [0, 1, 2, 50], "values": [*row[:3], row[50]], "max": row[50], "exp_sum": 12.0, "size": 100}
    assert read.distribution_from(**base, ties=99).mass == read.distribution(row).mass
    row[11:] = 0.5
    row[50] = 3.3
    assert read.distribution_from(**base, ties=11).mass == read.distribution(row).mass
    row[10] = 0.5
    assert read.distribution_from(**base, ties=10).mass == read.distribution(row).mass
    assert read.distribution_from(**base, ties=10).mass != read.distribution_from(**base, ties=11).mass


@pytest.mark.parametrize("where", [0, 300, 511, 512, 999])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_bad_value_anywhere_fails_with_the_census(where: int, value: float) -> None:
    row = np.zeros(1000, np.float32)
    row[where] = value
    census = f"nan={int(np.isnan(value))}, inf={int(np.isinf(value))}, vocab=1000"
    for top_k in (20, 0):
        with pytest.raises(NonFiniteLogits, match=census):
            reader(config(1.0, 0.95, top_k)).distribution(row)
    with pytest.raises(NonFiniteLogits, match=census):
        reader(config(0.0, 0.95, 20)).best(row)


def test_minus_infinity_alone_is_a_value() -> None:
    row = np.full(600, -np.inf, np.float32)
    with pytest.raises(NonFiniteLogits):
        reader(config(1.0, 0.95, 20)).distribution(row)
    row[599] = 0.0
    assert reader(config(1.0, 0.95, 20)).distribution(row).ids == [599]
    assert reader(config(0.0, 0.95, 20)).best(row) == 599


def test_unchecked_argmax_of_a_nan_row_is_token_0() -> None:
    read = reader(config(0.0, 0.95, 20))
    assert read.argmax(np.full(9, np.nan, np.float32), "float32") == 0
    assert read.argmax(np.array([1, 3, 3, 2], np.float32), "float32") == 1


@pytest.mark.parametrize("size", SIZES)
def test_log_probabilities_are_a_log_softmax_of_the_raw_row(size: int) -> None:
    row = (np.random.default_rng(size).standard_normal(size) * 5).astype(np.float32)
    wide = row.astype(np.float64)
    want = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    value, top = reader(config(0.3, 0.5, 2, 1.0)).log_probability(row, size // 2, 3)
    assert abs(value - want[size // 2]) < 1e-5  # float32 log-sum-exp near 10: a few units in the last place
    assert [i for i, _ in top] == np.argsort(-wide, kind="stable")[:3].tolist()
    assert np.allclose([x for _, x in top], want[[i for i, _ in top]], atol=1e-5)
