"""The released checkpoint layout: every tensor it must hold, by name and shape, and the rows of every module of a pack.

Owns the bf16 release, the FP8 release (E4M3 with block scales) and the three ways experts are stored. Refuses a folder
that lacks a tensor, has one too many, or one of another shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np

from qwenmtp.errors import ModelFormatError
from qwenmtp.geometry import flat_config
from qwenmtp.safetensors_io import TensorInfo, read_header, read_rows
from qwenmtp.weights import INDEX, read_json

TRUNK = "model.language_model."
VISION = "model.visual."
FP8_BLOCK = 128  # rows and columns that share one scale
NUMPY = {"BF16": np.uint16, "F32": np.float32, "F8_E4M3": np.uint8, "I64": np.int64}

# Stored zero-centred; a pack holds bf16(1 + w).
SHIFTED_NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "hc_norm", "norm_key", "norm_query", "norm_conv")


@dataclass(frozen=True)
class Module:
    """One weight of a pack, whose rows come from the release.

    shape [.., n_in]; `rows(first, count)` gives rows of the matrix with its leading axes flattened, in bf16 (A_log and
    integers as stored); None: zeros, which no disk need hold. Blocks begin and end at multiples of `unit` rows.
    """

    name: str  # as in the pack
    cls: str | None  # class of the recipe; None: never quantised
    dtype: str
    shape: tuple[int, ...]
    rows: Callable[[int, int], mx.array] | None
    unit: int = 1

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])


class Released:
    """A folder in the released layout, checked.

    Raises:
        ModelFormatError: the folder is something else, or incomplete; the message names what was found and expected.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / "config.json")
        self.geometry = flat_config(self.config)
        self.tensors = self._open_shards()
        self._check_layout()
        self._list_modules(has_mtp=any(n.startswith("mtp.") for n in self.tensors))
        self.vision = [t for n, t in self.tensors.items() if n.startswith(VISION)]
        extra = sorted(n for n in self.tensors if n not in self._used and not n.startswith(VISION))
        if extra:
            raise self._bad(f"unknown tensor {extra[0]}, expected none ({len(extra)} in all)")

    # ------------------------------------------------------------------ files
    def _open_shards(self) -> dict[str, TensorInfo]:
        if not (self.folder / INDEX).exists() and (self.folder / "model.safetensors").exists():
            return read_header(self.folder / "model.safetensors")[0]
        weight_map = read_json(self.folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
            raise self._bad(f"{INDEX} has no weight_map of file names")
        files = set(weight_map.values())
        unlisted = sorted(p.name for p in self.folder.glob("model*.safetensors") if p.name not in files)
        if unlisted:
            raise self._bad(f"shard {unlisted[0]} is missing from {INDEX}")
        tensors: dict[str, TensorInfo] = {}
        for name in sorted(files):
            if Path(name).name != name or not (self.folder / name).is_file():
                raise self._bad(f"shard {name} of {INDEX} is no file of this folder")
            for key, info in read_header(self.folder / name)[0].items():
                if weight_map.get(key) != name:
                    raise self._bad(f"{key} is in {name}, {INDEX} says {weight_map.get(key)}")
                tensors[key] = info
        lost = sorted(set(weight_map) - set(tensors))
        if lost:
            raise self._bad(f"{INDEX} places {lost[0]} in {weight_map[lost[0]]}, which does not hold it")
        return tensors

    def _check_layout(self) -> None:
        if any(n.startswith(TRUNK) for n in self.tensors):
            return
        if any(n.startswith("language_model.") for n in self.tensors):
            raise self._bad("already converted (names begin with language_model.), expected a released checkpoint")
        raise self._bad(f"unknown layout, expected names that begin with {TRUNK}")

    # ------------------------------------------------------------------ modules, in the order of the pack
    def _list_modules(self, has_mtp: bool) -> None:
        self._used: set[str] = set()
        self.table: list[Module] = []
        self.body = list(self._body())
        self.mtp = list(self._mtp()) if has_mtp else []

    def _body(self) -> Iterator[Module]:
        g = self.geometry
        if len(g["ple_layers"]) > 1:
            raise self._bad(f"config.json has {len(g['ple_layers'])} ple_layer_ids, expected at most one")
        yield self._matrix(f"{TRUNK}embed_tokens.weight", "embed_tokens", g["vocab_size"], g["hidden_size"])
        for i, is_attention in enumerate(g["full_attention"]):
            at = f"{TRUNK}layers.{i}."
            if i in g["ple_layers"]:
                yield from self._ple(f"{at}ple.")
            yield from self._layer(at, is_attention, "")
        yield from self._hyper(f"{TRUNK}hyper_connection_mixer.", "hyper", inject=False)
        yield self._matrix("lm_head.weight", "lm_head", g["vocab_size"], g["hidden_size"])

    def _mtp(self) -> Iterator[Module]:
        hidden, streams = self.geometry["hidden_size"], self.geometry["hc_count"]
        yield self._vector("mtp.pre_fc_norm_embedding.weight", hidden)
        yield self._vector("mtp.pre_fc_norm_hidden.weight", streams * hidden)
        yield self._matrix("mtp.fc_embedding.weight", "mtp_fc", hidden, hidden)
        yield self._matrix("mtp.fc_hidden.weight", "mtp_fc", hidden, hidden)
        yield from self._layer("mtp.layers.0.", True, "mtp_")
        yield from self._hyper("mtp.hyper_connection_mixer.", "mtp_hyper", inject=False)

    def _layer(self, at: str, is_attention: bool, prefix: str) -> Iterator[Module]:
        yield from self._hyper(f"{at}attn_hyper_connection.", f"{prefix}hyper")
        if is_attention:
            yield from self._attention(f"{at}self_attn.", prefix)
        else:
            yield from self._gdn(f"{at}linear_attn.")
        yield from self._hyper(f"{at}mlp_hyper_connection.", f"{prefix}hyper")
        yield from self._moe(f"{at}mlp.", prefix)

    def _hyper(self, at: str, cls: str, inject: bool = True) -> Iterator[Module]:
        g = self.geometry
        streams, rank, wide = g["hc_count"], g["hc_rank"], g["hc_count"] * g["hidden_size"]
        yield self._vector(f"{at}hc_norm.weight", wide)
        yield self._matrix(f"{at}input_mix_weight_down.weight", cls, rank, wide)
        yield self._matrix(f"{at}input_mix_weight_up.weight", cls, wide, rank)
        if inject:
            yield self._matrix(f"{at}block_inject_weight.weight", cls, streams, wide)

    def _gdn(self, at: str) -> Iterator[Module]:
        g = self.geometry
        hidden, n_v, d_v = g["hidden_size"], g["gdn_value_heads"], g["gdn_value_dim"]
        n_qkv = 2 * g["gdn_key_heads"] * g["gdn_key_dim"] + n_v * d_v
        yield self._matrix(f"{at}in_proj_qkv.weight", "gdn_in", n_qkv, hidden)
        yield self._matrix(f"{at}in_proj_z.weight", "gdn_in", n_v * d_v, hidden)
        yield self._matrix(f"{at}in_proj_a.weight", "gdn_in", n_v, hidden)
        yield self._matrix(f"{at}in_proj_b.weight", "gdn_in", n_v, hidden)
        yield self._conv(f"{at}conv1d.weight", n_qkv, g["gdn_conv_kernel"])
        yield self._vector(f"{at}A_log", n_v)
        yield self._vector(f"{at}dt_bias", n_v)
        yield self._vector(f"{at}norm.weight", d_v)
        yield self._matrix(f"{at}out_proj.weight", "gdn_out", hidden, n_v * d_v)

    def _attention(self, at: str, prefix: str) -> Iterator[Module]:
        g, cls = self.geometry, f"{prefix}attention"
        hidden, dim, index_dim = g["hidden_size"], g["head_dim"], g["index_dim"]
        n_index = (g["index_heads"] + 1) * index_dim
        yield self._matrix(f"{at}q_proj.weight", cls, 2 * g["n_heads"] * dim, hidden)
        yield self._matrix(f"{at}k_proj.weight", cls, g["n_kv_heads"] * dim, hidden)
        yield self._matrix(f"{at}v_proj.weight", cls, g["n_kv_heads"] * dim, hidden)
        yield self._matrix(f"{at}o_proj.weight", cls, hidden, g["n_heads"] * dim)
        yield self._vector(f"{at}q_norm.weight", dim)
        yield self._vector(f"{at}k_norm.weight", dim)
        yield self._matrix(f"{at}indexer.index_qk_proj.weight", f"{prefix}indexer", n_index, hidden)
        yield self._vector(f"{at}indexer.q_layernorm.weight", index_dim)
        yield self._vector(f"{at}indexer.k_layernorm.weight", index_dim)

    def _moe(self, at: str, prefix: str) -> Iterator[Module]:
        g, shared = self.geometry, f"{prefix}shared_expert"
        hidden, inner = g["hidden_size"], g["shared_dim"]
        yield self._matrix(f"{at}gate.weight", f"{prefix}router", g["n_experts"], hidden)
        yield from self._experts(at, f"{prefix}routed_experts", g["n_experts"], hidden, g["expert_dim"])
        yield self._matrix(f"{at}shared_expert.gate_proj.weight", shared, inner, hidden)
        yield self._matrix(f"{at}shared_expert.up_proj.weight", shared, inner, hidden)
        yield self._matrix(f"{at}shared_expert.down_proj.weight", shared, hidden, inner)
        yield self._matrix(f"{at}shared_expert_gate.weight", f"{prefix}shared_expert_gate", 1, hidden)

    def _ple(self, at: str) -> Iterator[Module]:
        g = self.geometry
        hidden, wide = g["hidden_size"], g["hc_count"] * g["hidden_size"]
        n_heads = (g["ngram_size"] - 1) * g["heads_per_ngram"]
        if n_heads < 1:
            raise self._bad(f"config.json has {g['heads_per_ngram']} heads for {g['ngram_size']}-grams, expected some")
        yield self._matrix(f"{at}key_proj.weight", "ple", wide, g["ple_dim"])
        yield self._matrix(f"{at}value_proj.weight", "ple", hidden, g["ple_dim"])
        for norm in ("norm_key", "norm_query", "norm_conv"):
            yield self._vector(f"{at}{norm}.weight", wide)
        yield self._conv(f"{at}conv1d.weight", wide, g["ple_conv_kernel"])
        yield self._vector(f"{at}ple_embedding.layer_multipliers", g["ngram_size"], "I64")
        yield self._vector(f"{at}ple_embedding.ngram_heads_vocab_sizes", n_heads, "I64")
        yield self._vector(f"{at}ple_embedding.ngram_heads_offsets", n_heads, "I64")
        self.table.append(self._table(f"{at}ple_embedding.", g["ple_dim"] // n_heads))

    # ------------------------------------------------------------------ one module each
    def _matrix(self, name: str, cls: str, n_out: int, n_in: int) -> Module:
        info = self._take(name, (n_out, n_in))
        return Module(_pack_name(name), cls, "BF16", info.shape, partial(self._rows, info))

    def _vector(self, name: str, size: int, dtype: str = "BF16") -> Module:
        info = self._take(name, (size,), dtype)
        if name.endswith(".A_log"):
            dtype = info.dtype  # the one parameter that keeps float32 where the release has it
        shift = name.split(".")[-2] in SHIFTED_NORMS

        def whole(first: int, count: int) -> mx.array:
            values = self._stored(info, first, count)
            values = values + 1.0 if shift else values
            return values.astype(mx.bfloat16) if dtype == "BF16" else values

        return Module(_pack_name(name), None, dtype, info.shape, whole)

    def _conv(self, name: str, channels: int, kernel: int) -> Module:
        """[channels, 1, kernel] -> [channels, kernel, 1]: the same bytes."""
        info = self._take(name, (channels, 1, kernel))
        pack = _pack_name(name).replace(".ple.conv1d.weight", ".ple.conv_weight")

        def whole(_first: int, _count: int) -> mx.array:
            return self._rows(info, 0, channels)

        return Module(pack, None, "BF16", (channels, kernel, 1), whole, unit=channels * kernel)

    # ------------------------------------------------------------------ experts
    def _experts(self, at: str, cls: str, n: int, hidden: int, inner: int) -> Iterator[Module]:
        shapes = {"gate_proj": (n, inner, hidden), "up_proj": (n, inner, hidden), "down_proj": (n, hidden, inner)}
        if f"{at}experts.gate_up_proj" in self.tensors:
            rows = self._packed_experts(f"{at}experts.", n, hidden, inner)
        else:
            rows = {p: self._numbered_experts(f"{at}experts.", p, shape) for p, shape in shapes.items()}
        for part, shape in shapes.items():
            yield Module(_pack_name(f"{at}switch_mlp.{part}.weight"), cls, "BF16", shape, rows[part], unit=shape[1])

    def _packed_experts(self, at: str, n: int, hidden: int, inner: int) -> dict[str, Callable[[int, int], mx.array]]:
        """One pair of tensors, [E,2I,H] and [E,H,I], or both with their last two axes exchanged.

        Where 2I = H or I = H one of the two is square; the other then decides.
        """
        plain = ((n, 2 * inner, hidden), (n, hidden, inner))
        turned = tuple((e, b, a) for e, a, b in plain)
        names = (f"{at}gate_up_proj", f"{at}down_proj")
        found = tuple(self.tensors[name].shape if name in self.tensors else () for name in names)
        if found not in (plain, turned):
            raise self._bad(f"{names[0]} and {names[1]} have shapes {found}, expected {plain} or {turned}")
        gate_up, down = (self._take(name, shape) for name, shape in zip(names, found, strict=True))

        def read(info: TensorInfo, start: int, size: int, first: int, count: int) -> mx.array:
            """Output rows [start, start + size) of each expert; first and count are whole experts' rows."""
            e, n_e = first // size, count // size
            slab = self._rows(info, e * info.shape[1], n_e * info.shape[1]).reshape(n_e, *info.shape[1:])
            slab = slab if found == plain else slab.swapaxes(1, 2)
            return slab[:, start : start + size].reshape(count, -1)

        return {
            "gate_proj": lambda first, count: read(gate_up, 0, inner, first, count),
            "up_proj": lambda first, count: read(gate_up, inner, inner, first, count),
            "down_proj": lambda first, count: read(down, 0, hidden, first, count),
        }

    def _numbered_experts(self, at: str, part: str, shape: tuple[int, ...]) -> Callable[[int, int], mx.array]:
        n, size, _ = shape
        infos = [self._take(f"{at}{e}.{part}.weight", shape[1:]) for e in range(n)]

        def read(first: int, count: int) -> mx.array:
            experts = range(first // size, (first + count) // size)
            return mx.concatenate([self._rows(infos[e], 0, size) for e in experts])

        return read

    # ------------------------------------------------------------------ the n-gram table
    def _table(self, at: str, dim: int) -> Module:
        """Shards in numeric order; row r of the file is row r of the hash."""
        shards: list[TensorInfo] = []
        while (name := f"{at}ngram_embedding.shard_{len(shards)}.weight") in self.tensors:
            shards.append(self._take(name, (*self.tensors[name].shape[:1], dim)))
        starts = np.cumsum([0, *(s.n_rows for s in shards)])
        sizes, offsets = (
            read_rows(self.tensors[f"{at}ngram_heads_{what}"], 0, 1).view(np.int64)
            for what in ("vocab_sizes", "offsets")
        )
        if (needed := int((sizes + offsets).max())) > starts[-1]:
            raise self._bad(f"n-gram table of {len(shards)} shards has {starts[-1]} rows, expected {needed} or more")

        def read(first: int, count: int) -> mx.array:
            parts, at_shard = [], int(np.searchsorted(starts, first, "right")) - 1
            while count:
                take = min(count, int(starts[at_shard + 1]) - first)
                parts.append(self._rows(shards[at_shard], first - int(starts[at_shard]), take))
                first, count, at_shard = first + take, count - take, at_shard + 1
            return mx.concatenate(parts)

        return Module("ngram.weight", "table", "BF16", (int(starts[-1]), dim), read)

    # ------------------------------------------------------------------ tensors
    def _take(self, name: str, shape: tuple[int, ...], dtype: str = "BF16") -> TensorInfo:
        """The tensor, checked and marked as used; E4M3 brings its scale along."""
        info = self.tensors.get(name)
        if info is None:
            raise self._bad(f"tensor {name} is missing, expected {dtype} {list(shape)}")
        accepted = ("I64",) if dtype == "I64" else ("BF16", "F32", "F8_E4M3")[: 3 if len(shape) == 2 else 2]
        if info.shape != shape or info.dtype not in accepted:
            raise self._bad(
                f"{name} is {info.dtype} {list(info.shape)}, expected {' or '.join(accepted)} {list(shape)}"
            )
        self._used.add(name)
        if info.dtype == "F8_E4M3":
            self._used.add(self._scale_of(info).name)
        return info

    def _scale_of(self, info: TensorInfo) -> TensorInfo:
        """One scale for 128 x 128 values, or one for the whole table."""
        head, is_table, _ = info.name.partition(".shard_")
        name = f"{head}.weight_scale" if is_table else f"{info.name}_scale_inv"
        shapes = ((), (1,)) if is_table else (tuple(-(-n // FP8_BLOCK) for n in info.shape),)
        scale = self.tensors.get(name)
        if scale is None:
            raise self._bad(f"{info.name} is F8_E4M3, its scale {name} is missing")
        if scale.dtype not in ("BF16", "F32") or scale.shape not in shapes:
            raise self._bad(f"{name} is {scale.dtype} {list(scale.shape)}, expected BF16 or F32 {list(shapes[-1])}")
        return scale

    def _rows(self, info: TensorInfo, first: int, count: int) -> mx.array:
        """Rows [first, first + count) in bf16."""
        return self._stored(info, first, count).astype(mx.bfloat16)

    def _stored(self, info: TensorInfo, first: int, count: int) -> mx.array:
        """The same rows in their own type; E4M3 as float32, scaled."""
        values = mx.array(read_rows(info, first, count).view(NUMPY[info.dtype]))
        values = values if len(info.shape) > 1 else values.flatten()
        if info.dtype == "BF16":
            return values.view(mx.bfloat16)
        if info.dtype != "F8_E4M3":
            return values
        scale = self._scale_of(info)
        steps = self._stored(scale, 0, scale.n_rows).astype(mx.float32)
        if len(scale.shape) == 2:
            steps = steps[mx.arange(first, first + count) // FP8_BLOCK][:, mx.arange(info.shape[1]) // FP8_BLOCK]
        return mx.from_fp8(values, dtype=mx.float32) * steps

    def _bad(self, fact: str) -> ModelFormatError:
        return ModelFormatError(f"[convert.open] {self.folder}: {fact}")


def _pack_name(name: str) -> str:
    """The name a tensor of the release has in a pack."""
    if name == "lm_head.weight":
        return "language_model.lm_head.weight"
    return name.replace(TRUNK, "language_model.model.", 1)
