"""Greedy float32 streams of the demo checkpoint, from the PyTorch reference.

    demo_greedy.py CHECKPOINT OUT.json

Stops are ignored. The block tie rule of model.md 8.4 is imposed on the indexer. Each prompt is one
forward, each new token a one-row forward. min_margin is the smallest gap between the two best logits.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import reference
import torch
from tokenizers import Tokenizer
from transformers.cache_utils import DynamicCache

TOKENS = 64
NEAR_TIE = 3e-3  # a stream closer than this could flip between two float32 implementations

LONG = '''"""A bounded queue between one producer and one consumer.

The queue keeps its items in a ring. Both ends block: put() waits while the ring is full and get()
waits while it is empty. close() wakes everyone; put() on a closed queue raises, get() drains it first.
"""
import threading


class Closed(Exception):
    """The queue was closed and holds nothing more."""


class Ring:
    def __init__(self, size):
        if size < 1:
            raise ValueError("size must be positive")
        self._items = [None] * size
        self._head = 0
        self._count = 0
        self._open = True
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._used = threading.Condition(self._lock)

    def put(self, item, timeout=None):
        with self._lock:
            if not self._free.wait_for(lambda: not self._open or self._count < len(self._items), timeout):
                raise TimeoutError("the queue is full")
            if not self._open:
                raise Closed
            self._items[(self._head + self._count) % len(self._items)] = item
            self._count += 1
            self._used.notify()

    def get'''
TEXTS = {
    "code": "def main(argv):\n    parser = argparse.ArgumentParser(",
    "class": "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "prose": "The garbage collector runs when the number of allocations exceeds",
    "docstring": 'def read_config(path):\n    """Read an INI file and return a dictionary of',
    "chat": "<|im_start|>user\nWhat does json.dumps do?<|im_end|>\n<|im_start|>assistant\n",
    "chat_code": "<|im_start|>user\nWrite a function that joins two paths.<|im_end|>\n<|im_start|>assistant\n",
    "imports": "import os\nimport sys\nimport json\n\nfrom collections import",
    "unicode": "# naïve café — 東京 🐍\nname = '",
    "numbers": "PRIMES = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31,",
    "two_files": "def first():\n    return 1\n<|endoftext|>import logging\n\nlogger =",
    "test": "class TestStack(unittest.TestCase):\n    def setUp(self):\n        self.stack = ",
    "long": LONG,
}
IDS = {
    "one_token": [317],
    "eos_first": [0, 455, 82],
    "eos_twice": [0, 0],
    "eos_runs": [0, 0, 612, 0, 97, 98, 0, 0, 1044, 0],
    # the prompt fills 254 of 256 budget tokens: generation crosses the edge
    "edge": [(37 * i * i + 11 * i + 5) % 4000 + 16 for i in range(254)],
}


def greedy(models: reference.Models, ids: list[int]) -> tuple[list[int], float]:
    """TOKENS greedy ids after `ids`, and the smallest top-two logit gap on the way."""
    cache, rows, out, margin = DynamicCache(config=models.config), torch.tensor([ids]), [], np.inf
    with reference.block_choice("lowest", {}):
        while len(out) < TOKENS:
            row = models.trunk(input_ids=rows, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
            top = torch.sort(row, descending=True).values[:2]
            margin = min(margin, float(top[0] - top[1]))
            out.append(int(row.argmax()))
            rows = torch.tensor([[out[-1]]])
    return out, margin


def main(checkpoint: Path, out: Path) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    prompts = {name: tokenizer.encode(text).ids for name, text in TEXTS.items()} | IDS
    models = reference.build_models(checkpoint)
    rows = []
    for name, ids in prompts.items():
        greedy_ids, margin = greedy(models, ids)
        print(f"{name}: {len(ids)} tokens, margin {margin:.4f}, {tokenizer.decode(greedy_ids)!r}")
        if margin < NEAR_TIE:
            raise SystemExit(f"{name} is a near tie ({margin:.1e}); choose another prompt")
        rows.append({"name": name, "ids": ids, "greedy_ids": greedy_ids, "min_margin": margin})
    versions = {p: version(p) for p in ("torch", "transformers", "tokenizers", "numpy")}
    lines = ",\n".join("  " + json.dumps(r, separators=(",", ":")) for r in rows)
    out.write_text(f'{{"versions": {json.dumps(versions)}, "dtype": "float32",\n "prompts": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
