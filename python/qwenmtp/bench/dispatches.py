"""Launches of an accelerator for the released geometry, counted in its graphs without weights; waits of the host."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from qwenmtp.bench.synthetic import FLASH_NEXT
from qwenmtp.engine import null_decoder, planned_launches
from qwenmtp.geometry import flat_config
from qwenmtp.terminal import table

DEPTH = 3
WIDTH = (4, 64)  # of every matrix: the width decides no launch

# config.json of Qwen3.8-Flash-Next. Its vocabulary is cut from 248,320 ids and its n-gram hash from 20,000,000 rows a
# head to the first primes: the host reads rows of both tables, and no launch depends on their number.
RELEASED: dict[str, Any] = {
    "model_type": "qwen4_exp",
    "text_config": FLASH_NEXT
    | {
        "vocab_size": 4096,
        "eos_token_id": 4095,
        "ngram_vocab_size_base": 2,
        "make_ngram_vocab_size_divisible_by": 1024,
    },
}


def launches(config: dict[str, Any] = RELEASED, depth: int = DEPTH) -> dict[str, dict[str, int]]:
    """Launches by step (`ar`, `draft`, `verify`, `round`) and node name.

    Args:
        config: A config.json whose n-gram table has one n-gram layer and as many rows as its hash is padded to.
        depth: Drafts of a round.
    """
    geometry = flat_config(config)
    rows, dim = geometry["ngram_vocab_divisor"], geometry["ple_dim"] // 16
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table"
        table.write_bytes(bytes(rows * dim * 2))
        tensors = [("ngram.weight", "BF16", (rows, dim), 0, 0), ("mtp.fc_hidden.weight", "BF16", (1,), 0, 0)]
        return planned_launches(geometry, [str(table)], tensors, WIDTH, depth)


def syncs(depth: int = DEPTH) -> dict[str, int]:
    """Most waits for the device in a plain token, a greedy and a sampled round: the real loops over random rows."""
    rows = np.random.default_rng(0).standard_normal((8, 4096)).astype(np.float32)
    greedy, sampled = (0.0, 0.95, 20, 0.0, 0.0), (0.6, 0.95, 20, 0.0, 0.0)
    most = {}
    for name, target in (("token", sampled), ("greedy round", greedy), ("round", sampled)):
        options = {"target": target, "max_tokens": 64, "speculate": name != "token", "depth": depth}
        decoder = null_decoder(rows, [1, 2, 3], {**options, "context_copy": False, "device_candidates": True})
        decoder.step()  # reads the prompt's row
        counts = [decoder.statistics["syncs"]]
        while not decoder.done:
            decoder.step()
            counts.append(decoder.statistics["syncs"])
        most[name] = max(b - a for a, b in itertools.pairwise(counts))
    return most


def run(args: argparse.Namespace) -> int:
    """Count, print, and write (step, node, launches) to a CSV where asked to."""
    found, waits = launches(), syncs()
    totals = {step: sum(nodes.values()) for step, nodes in found.items()}
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("step", "node", "launches"))
            writer.writerows((step, node, n) for step, nodes in found.items() for node, n in nodes.items())
    if args.json:
        print(json.dumps({"launches": totals, "syncs": waits, "nodes": found}))
        return 0
    names = sorted({node for nodes in found.values() for node in nodes})
    rows = [(node, *(nodes.get(node, 0) for nodes in found.values())) for node in names]
    print(table([*rows, ("all", *totals.values())], ("launches", *found)))
    print("\nwaits of the host: " + ", ".join(f"{n} a {name}" for name, n in waits.items()))
    return 0
