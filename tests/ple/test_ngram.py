"""Row ids against an independent implementation, published vectors and every split."""

import _qwenmtp_testing
import numpy as np
import pytest

from qwenmtp import _core
from qwenmtp.errors import InvalidRequest, ModelFormatError

U64 = np.uint64
RELEASED_MULTIPLIERS = [23703573157769, 20109073645365, 8052911324071]


def geometry(vocab=248320, eos=248044, base=20_000_000):
    sizes, offsets = _core.ngram_heads(base, 16, 0)
    return {
        "vocab": vocab,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "multipliers": _core.ngram_multipliers(1234, vocab, 3, 0),
        "sizes": sizes,
        "offsets": offsets,
        "eos": eos,
    }


def core_rows(fields, ids, history):
    return _core.ngram_rows(_core.NgramConfig(**fields), np.asarray(ids, np.int32), np.asarray(history, np.int64))


def test_released_constants():
    fields = geometry()
    assert fields["multipliers"] == RELEASED_MULTIPLIERS
    assert fields["sizes"][0] == 20_000_003
    assert fields["sizes"][-1] == 20_000_171
    assert sum(fields["sizes"]) == 320_001_446
    assert fields["offsets"] == [sum(fields["sizes"][:h]) for h in range(16)]


def test_a_second_ple_layer_takes_the_next_primes():
    first, _ = _core.ngram_heads(5000, 16, 0)
    second, offsets = _core.ngram_heads(5000, 16, 1)
    both, _ = _core.ngram_heads(5000, 32, 0)
    assert first + second == both
    assert offsets[0] == 0
    one = _core.ngram_multipliers(1234, 4096, 3, 0)
    assert one != _core.ngram_multipliers(1234, 4096, 3, 1)
    assert all(m % 2 == 1 and m * 4095 < 2**63 for m in one)


def test_published_vector_multiplier_zero_belongs_to_the_newest_token():
    """b12x pull 332: multiplier 0 was applied to the oldest token, and the kernel's own oracle agreed."""
    fields = {"vocab": 100, "ngram_size": 3, "heads_per_ngram": 1, "multipliers": [3, 5, 7], "eos": 99}
    fields |= {"sizes": [101, 103], "offsets": [0, 101]}
    assert core_rows(fields, [7, 9, 11], [99, 99]).tolist() == [[1, 124], [56, 136], [12, 162]]


def test_eos_sees_its_past_and_the_next_token_sees_none():
    fields = geometry(vocab=64, eos=9, base=1000)
    rows = core_rows(fields, [3, 9, 5], [1, 2])
    assert (rows[1] == core_rows(fields, [9], [2, 3])[0]).all()
    assert (rows[2] == core_rows(fields, [5], [9, 9])[0]).all()
    assert (core_rows(fields, [5], [3, 9]) == core_rows(fields, [5], [9, 9])).all()
    assert (core_rows(fields, [5], [9, 3]) != core_rows(fields, [5], [4, 3])).any()


def naive_rows(ids, history, *, multipliers, sizes, offsets, eos, heads_per_ngram):
    """Rows [B, T, heads] of ids [B, T] with history [B, N-1], by the definition: token(t, s) looks s back unless an
    eos lies in between."""
    text = np.concatenate([history, ids], axis=1).astype(np.int64)
    past, n = history.shape[1], ids.shape[1]
    is_eos = text == eos
    eos_before = np.concatenate([np.zeros((len(text), 1), np.int64), np.cumsum(is_eos, axis=1)], axis=1)
    at = np.arange(past, past + n)
    mixed = text[:, at].astype(U64) * U64(multipliers[0])
    out = []
    for s in range(1, len(multipliers)):
        blocked = eos_before[:, at] != eos_before[:, at - s]
        token = np.where(blocked, eos, text[:, at - s])
        mixed = mixed ^ (token.astype(U64) * U64(multipliers[s]))
        heads = slice((s - 1) * heads_per_ngram, s * heads_per_ngram)
        rest = mixed[..., None] % np.asarray(sizes[heads], U64)
        out.append(rest.astype(np.int64) + np.asarray(offsets[heads], np.int64))
    return np.concatenate(out, axis=-1)


@pytest.mark.parametrize("n_cases", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_random_cases_equal_the_independent_rows(n_cases):
    """Random texts cut at random places, in batches of one geometry; some dense in eos, some at the text's start."""
    rng = np.random.default_rng(5)
    batch = 10_000
    for _ in range(n_cases // batch):
        length = int(rng.integers(1, 13))
        vocab, base = ((248320, 20_000_000), (4096, 5000), (6, 50))[int(rng.integers(3))]
        eos = int(rng.integers(vocab))
        texts = rng.integers(0, vocab, (batch, length + 2))
        texts[rng.random(texts.shape) < rng.choice([0.0, 0.3])] = eos
        texts[: batch // 4, :2] = eos
        fields = geometry(vocab=vocab, eos=eos, base=base)
        law = {k: fields[k] for k in ("multipliers", "sizes", "offsets", "eos", "heads_per_ngram")}
        config, splits = _core.NgramConfig(**fields), rng.integers(0, length + 1, batch)
        got = _qwenmtp_testing.ple_ngram_rows(config, texts.astype(np.int32), splits)
        np.testing.assert_array_equal(got, naive_rows(texts[:, 2:], texts[:, :2], **law))


def test_every_split_equals_the_whole():
    rng = np.random.default_rng(1)
    fields = geometry(vocab=50, eos=7, base=1000)
    ids = rng.integers(0, 50, 40)
    ids[rng.random(40) < 0.2] = 7
    text = np.concatenate([[7, 7], ids])
    whole = core_rows(fields, ids, text[:2])
    for cut in range(41):
        head = core_rows(fields, ids[:cut], text[:2])
        tail = core_rows(fields, ids[cut:], text[cut : cut + 2])
        assert (np.concatenate([head, tail]) == whole).all(), cut


@pytest.mark.parametrize("bad", [-1, 100])
def test_an_id_outside_the_vocabulary_is_refused(bad):
    fields = geometry(vocab=100, eos=9, base=1000)
    with pytest.raises(InvalidRequest, match="token id"):
        core_rows(fields, [1, bad], [9, 9])
    with pytest.raises(InvalidRequest, match="token id"):
        core_rows(fields, [1], [bad, 9])


def test_a_history_of_another_length_is_refused():
    with pytest.raises(InvalidRequest, match="expected 2"):
        core_rows(geometry(), [1], [9])


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"multipliers": [1, 3]}, "2 multipliers"),
        ({"multipliers": [1, 3, 2**62]}, "multiplier"),
        ({"multipliers": [1, 3, -1]}, "multiplier"),
        ({"sizes": [7] * 15}, "15 sizes"),
        ({"offsets": [0] * 16}, "head 1"),
        ({"sizes": [0] * 16, "offsets": [0] * 16}, "head 0"),
        ({"eos": 248320}, "eos"),
        ({"eos": -1}, "eos"),
        ({"vocab": 0}, "vocab"),
        ({"vocab": 2**31 + 1}, "vocab"),
        ({"ngram_size": 1}, "ngram_size"),
        ({"heads_per_ngram": 0}, "heads"),
    ],
    ids=str,
)
def test_a_wrong_geometry_is_refused(change, fact):
    with pytest.raises(ModelFormatError, match=fact):
        _core.NgramConfig(**(geometry() | change)).check(320_001_536)


def test_a_table_too_small_for_the_heads_is_refused():
    config = _core.NgramConfig(**geometry())
    config.check(320_001_446)
    with pytest.raises(ModelFormatError, match="head 15"):
        config.check(320_001_445)
