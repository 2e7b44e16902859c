"""The stager gives the values that the plain gather of the rows gives."""

import numpy as np
import pytest

from qwenmtp import _core
from qwenmtp.errors import ModelFormatError

VOCAB, EOS = 50, 7


def ngram(base=60):
    sizes, offsets = _core.ngram_heads(base, 16, 0)
    multipliers = _core.ngram_multipliers(1234, VOCAB, 3, 0)
    fields = {"vocab": VOCAB, "ngram_size": 3, "heads_per_ngram": 8, "eos": EOS}
    return _core.NgramConfig(multipliers=multipliers, sizes=sizes, offsets=offsets, **fields)


def test_embedding_is_the_rows_in_head_order(make_table):
    table = make_table(shard_rows=(1000, 800))
    stager = _core.PleStager(ngram(), table.spec)
    ids = np.random.default_rng(0).integers(0, VOCAB, 33).astype(np.int32)
    history = np.array([EOS, 3])
    rows = _core.ngram_rows(ngram(), ids, history)
    got = stager.embed(ids, history, _core.RowType.float32)
    assert got.shape == (33, 16 * 160)
    np.testing.assert_array_equal(got.reshape(33, 16, 160), table.float32[rows])
    np.testing.assert_array_equal(
        stager.embed(ids, history, _core.RowType.bfloat16).reshape(33, 16, 160), table.bfloat16[rows]
    )


def test_a_table_smaller_than_the_heads_is_refused(make_table):
    with pytest.raises(ModelFormatError, match="head"):
        _core.PleStager(ngram(), make_table().spec)
