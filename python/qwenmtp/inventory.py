"""What a model folder holds, by class of module: widths, bytes, and the bytes that one token reads. Headers only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from qwenmtp.safetensors_io import ITEM_BYTES
from qwenmtp.weights import ModelFiles

# First match counts; law: the cost table of reference/model.md 16.
CLASSES = (
    ("vision", ("visual.", "vision_tower.")),
    ("n-gram table", ("ngram_embedding.", "ngram.")),
    ("routed experts", (".experts.", ".switch_mlp.")),
    ("hyper connections", ("hyper_connection",)),
    ("shared experts", (".shared_expert.",)),
    ("router", (".mlp.gate.", ".shared_expert_gate.")),
    ("indexer", (".indexer.",)),
    ("attention", (".self_attn.",)),
    ("GDN", (".linear_attn.",)),
    ("PLE", (".ple.",)),
    ("embedding", ("embed_tokens.",)),
    ("LM head", ("lm_head.",)),
    ("MTP inputs", ("mtp.",)),
)


@dataclass(slots=True)
class ClassBytes:
    """One class of modules.

    Attributes:
        n_bytes: Bytes in the files.
        per_token: Bytes that one decoded token reads; experts and table rows by what is taken.
        widths: Stored forms, most bytes first, such as `4-bit g32` or `BF16`.
    """

    n_bytes: int = 0
    per_token: float = 0.0
    widths: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All fields, JSON-ready; widths as a list."""
        ordered = sorted(self.widths, key=lambda w: -self.widths[w])
        return {"bytes": self.n_bytes, "bytes_per_token": round(self.per_token), "widths": ordered}


def inventory(files: ModelFiles) -> dict[str, dict[str, ClassBytes]]:
    """Classes of the trunk and of the MTP head: `{"trunk": {class: ...}, "mtp": {...}}`."""
    g = files.geometry
    scaled = {name.rsplit(".", 1)[0] for name, *_ in files.tensors if name.endswith(".scales")}
    out: dict[str, dict[str, ClassBytes]] = {"trunk": {}, "mtp": {}}
    for name, dtype, shape, _, _ in files.tensors:
        group = next((c for c, parts in CLASSES if any(p in name for p in parts)), "norms")
        entry = out["mtp" if name.startswith("mtp.") else "trunk"].setdefault(group, ClassBytes())
        size = math.prod(shape) * ITEM_BYTES[dtype]
        entry.n_bytes += size
        entry.per_token += size * _share(group, shape, g)
        module = name.rsplit(".", 1)[0]
        width = _width(files, module, shape) if module in scaled else dtype
        entry.widths[width] = entry.widths.get(width, 0) + size
    return out


def _share(group: str, shape: tuple[int, ...], g: dict[str, Any]) -> float:
    """The part of a tensor that one token reads."""
    if group == "vision":
        return 0.0
    if group == "routed experts":
        return float(g["top_k"] / g["n_experts"])
    if group == "embedding":
        return 1 / shape[0]
    if group == "n-gram table":
        heads = (g["ngram_size"] - 1) * g["heads_per_ngram"]
        return heads / shape[0] if len(shape) == 2 else 0.0
    return 1.0


def _width(files: ModelFiles, module: str, shape: tuple[int, ...]) -> str:
    rule = files.quant.get(module) or files.quant.get("")
    if rule is None or module.startswith("mtp."):
        of = {n: s for n, _, s, _, _ in files.tensors if n.rsplit(".", 1)[0] == module}
        words, groups = of[module + ".weight"][-1], of[module + ".scales"][-1]
        for group in (32, 64, 128):
            if (words * 32) % (groups * group) == 0 and 2 <= words * 32 // (groups * group) <= 8:
                return f"{words * 32 // (groups * group)}-bit g{group}"
    return f"{rule[0]}-bit g{rule[1]}" if rule else "affine"
