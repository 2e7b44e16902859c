"""Keyed fixtures: the retired device sampler of MTPLX, one mx.random key a token.

MTPLX 2.11.3's pipelined AR lane held key = mx.random.key(seed & 0x7FFFFFFF) and took (key, sub) = split(key) for every
token after the first; 2.12.2 still has the sampler itself, which is what runs here. Rows have no equal values near the
cut, where the partition would choose.
"""

from __future__ import annotations

from itertools import product

import mlx.core as mx
import numpy as np
from cases_sampler import DTYPES
from recorder import Book, Config, Record, gen, sampler
from rules import round_to
from scripted_math import logits_row

CONFIGS = (
    Config(0.6, 0.95, 20),
    Config(1.0, 0.95, 20),
    Config(0.5, 1.0, 2),
    Config(1.0, 0.5, 5),
    Config(1.3, 0.0, 40),
)
SHAPES = (("float32", 64, 1.0), ("float32", 1000, 2.0), ("bfloat16", 48, 1.0), ("float16", 300, 1.5))
SEEDS = (0, 1, 7, 42, 12345, 2**31 - 1, 2**31 + 5, 2**40 + 3, 2**63 - 1, 2**64 + 9)
TOKENS = 5  # of each stream: 10 seeds x 20 streams x 5 = 1,000


def clear_row(case: int, dtype: str, vocab: int, scale: float, top_k: int) -> int:
    """The first case from `case` on whose best top_k + 1 values all differ."""
    while True:
        best = np.sort(round_to(logits_row("hash", case, vocab, scale), dtype))[::-1][: top_k + 1]
        if (np.diff(best) < 0).all():
            return case
        case += 1


def build() -> list[Record]:
    book, case = Book("keyed"), 30_000
    for seed, config, (dtype, vocab, scale) in product(SEEDS, CONFIGS, SHAPES):
        key = mx.random.key(seed & 0x7FFFFFFF)
        for index in range(TOKENS):
            key, sub = mx.random.split(key)
            case = clear_row(case + 1, dtype, vocab, scale, config.top_k)
            row = mx.array(logits_row("hash", case, vocab, scale)).astype(DTYPES[dtype])
            book.n += 1
            book.keep({
                "id": f"keyed-{book.n:04d}", "kind": "keyed", "seed": str(seed), "index": index,
                "key": [int(word) for word in np.array(sub)],
                "logits": {"rule": "hash", "case": case, "vocab": vocab, "scale": scale, "dtype": dtype},
                "sampler": sampler(config), "token": int(gen._mx_lazy_sample(row, config, sub).item()),
            })  # fmt: skip
    return book.records
