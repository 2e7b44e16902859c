"""The PyTorch reference (transformers qwen4_exp): trunk, MTP head, block tie rule, state dump."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from layouts import load_checkpoint
from torch import nn
from transformers.cache_utils import DynamicCache
from transformers.models.qwen4_exp import modeling_qwen4_exp as M
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

Arrays = dict[str, np.ndarray]
NOT_MODELLED = {
    "ngram_sidecar", "model_type", "mtp", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype",
    "dtype",
}  # fmt: skip
torch.set_grad_enabled(False)


class Head(nn.Module):
    """The MTP head, assembled from reference modules: transformers ships none."""

    def __init__(self, trunk_config: Any, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        c = copy.deepcopy(trunk_config)
        c.layer_types, c.num_hidden_layers, c.ple_layer_ids = ["indexed_attention"], 1, []
        self.config = c
        self.pre_fc_norm_embedding = M.Qwen4ExpTextRMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.pre_fc_norm_hidden = M.Qwen4ExpTextRMSNorm(c.hc_count * c.hidden_size, eps=c.rms_norm_eps)
        self.fc_embedding = nn.Linear(c.hidden_size, c.hidden_size, bias=False)
        self.fc_hidden = nn.Linear(c.hidden_size, c.hidden_size, bias=False)
        self.layers = nn.ModuleList([M.Qwen4ExpTextDecoderLayer(c, 0)])
        self.hyper_connection_mixer = M.Qwen4ExpTextGatedResidual(c, use_combine=False)
        self.load_state_dict(tensors)

    def fuse(self, wide: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        e = self.fc_embedding(self.pre_fc_norm_embedding(embedded))
        s = self.pre_fc_norm_hidden(wide).unflatten(-1, (self.config.hc_count, self.config.hidden_size))
        return (self.fc_hidden(s) + e.unsqueeze(-2)).flatten(-2)

    def step(self, wide: torch.Tensor, embedded: torch.Tensor, cache: Any, rotary: Any) -> torch.Tensor:
        """Rows appended to the head's own cache -> its wide stream."""
        x = self.fuse(wide, embedded)
        n, past = x.shape[1], cache.get_seq_length()
        position = torch.arange(past + n)
        mask = torch.zeros(1, 1, n, past + n, dtype=x.dtype)
        mask[0, 0].masked_fill_(position > position[past:, None], torch.finfo(x.dtype).min)
        table = rotary(x, position.expand(3, 1, -1))
        return self.layers[0](x, position_embeddings=table, attention_mask=mask, cache=cache)


@dataclass(frozen=True)
class Models:
    config: Any
    trunk: Any
    head: Head | None

    def head_logits(self, wide: torch.Tensor) -> torch.Tensor:
        assert self.head is not None
        return self.trunk.lm_head(self.head.hyper_connection_mixer(wide))[0]


def build_models(path: Path, dtype: str = "f32") -> Models:
    text, tensors = load_checkpoint(path)
    config = Qwen4ExpTextConfig(**{k: v for k, v in text.items() if k not in NOT_MODELLED})
    config._attn_implementation = config._experts_implementation = "eager"
    model = M.Qwen4ExpForCausalLM(config)
    trunk, head, tables = {}, {}, {}
    for name, value in tensors.items():
        short = name.replace("model.language_model.", "model.")
        base, sep, rest = short.partition(".shard_")
        if name.startswith("mtp."):
            head[name.removeprefix("mtp.")] = value
        elif sep:
            tables.setdefault(base, {})[int(rest.split(".")[0])] = value
        elif not name.startswith("model.visual."):
            trunk[short] = value
    for base, parts in tables.items():
        trunk[base + ".weight"] = torch.cat([parts[i] for i in range(len(parts))])
    result = model.load_state_dict(trunk, strict=False)
    missing = [m for m in result.missing_keys if "inv_freq" not in m]
    if missing or result.unexpected_keys:
        raise SystemExit(f"checkpoint mismatch: missing {missing[:4]}, unexpected {result.unexpected_keys[:4]}")
    want = torch.float32 if dtype == "f32" else torch.bfloat16
    return Models(config, model.to(want).eval(), Head(config, head).to(want).eval() if head else None)


@contextlib.contextmanager
def block_choice(rule: str, seen: dict[str, Any]) -> Iterator[None]:
    """Watch the indexer's top-k (the only one-dimensional call); "lowest" imposes the tie rule of model.md 8.4."""
    plain = torch.Tensor.topk

    def choose(scores: torch.Tensor, k: int, dim: int = -1, *rest: Any, **named: Any) -> Any:
        if scores.dim() != 1:
            return plain(scores, k, dim, *rest, **named)
        out = plain(scores, k, dim, *rest, **named)
        if rule == "lowest":
            ids = torch.arange(scores.numel(), dtype=torch.float32)
            order = torch.sort(scores - ids * torch.tensor(1e-12), stable=True).indices[scores.numel() - k :]
            out = torch.return_types.topk((scores[order], order))
        if k < scores.numel():
            top = torch.sort(scores, descending=True).values
            if top[k - 1] == top[k]:
                seen["ties"] = seen.get("ties", 0) + 1
            else:
                seen["qsa"] = min(seen.get("qsa", 1.0), ((top[k - 1] - top[k]) / top[0]).item())
        return out

    torch.Tensor.topk = choose
    try:
        yield
    finally:
        torch.Tensor.topk = plain


def array(t: torch.Tensor) -> np.ndarray:
    return t.float().numpy()


class Recorder:
    """Forward hooks on the trunk; every call adds one entry of detached parts."""

    def __init__(self, models: Models, full: bool) -> None:
        self.got: dict[str, list[list[Any]]] = {}
        self.hooks: list[Any] = []
        body = models.trunk.model
        self.before(body.hyper_connection_mixer, "hyper")
        for i, layer in enumerate(body.layers):
            self.after(layer.mlp.gate, f"L{i}.router")
            if full:
                self.watch_layer(i, layer)
        if full:
            self.after(body.hyper_connection_mixer, "final")

    def watch_layer(self, i: int, layer: Any) -> None:
        self.before(layer, f"L{i}.in")
        self.after(layer, f"L{i}.out")
        self.after(layer.attn_hyper_connection, f"L{i}.attn.hc")
        self.after(layer.mlp_hyper_connection, f"L{i}.mlp.hc")
        self.after(layer.mlp, f"L{i}.moe")
        if layer.ple is not None:
            self.after(layer.ple, f"L{i}.ple")
        if layer.layer_type == "linear_attention":
            self.after(layer.linear_attn, f"L{i}.attn")
        else:
            self.after(layer.self_attn, f"L{i}.attn")
            self.after(layer.self_attn.indexer, f"L{i}.select")

    def keep(self, name: str, parts: Any) -> None:
        parts = parts if isinstance(parts, tuple) else (parts,)
        self.got.setdefault(name, []).append([p.detach().clone() if torch.is_tensor(p) else None for p in parts])

    def after(self, module: nn.Module, name: str) -> None:
        self.hooks.append(module.register_forward_hook(lambda _module, _args, output: self.keep(name, output)))

    def before(self, module: nn.Module, name: str) -> None:
        self.hooks.append(module.register_forward_pre_hook(lambda _module, args: self.keep(name, args[0])))

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def rows(self, name: str, part: int = 0) -> torch.Tensor:
        return torch.cat([call[part][0] if call[part].dim() > 2 else call[part] for call in self.got[name]])

    def selection(self, i: int, n_rows: int) -> np.ndarray:
        out, row = np.zeros((n_rows, n_rows), bool), 0
        for call in self.got[f"L{i}.select"]:
            mask = call[0][0, 0].numpy()
            out[row : row + mask.shape[0], : mask.shape[1]] = mask
            row += mask.shape[0]
        return out


def state_of(models: Models, cache: Any) -> Arrays:
    out = {}
    for i, layer in enumerate(models.trunk.model.layers):
        s = cache.layers[i]
        if layer.layer_type == "linear_attention":
            out[f"state.{i}.conv"] = array(s.conv_states[0][0, :, 1:].T)
            out[f"state.{i}.delta"] = array(s.recurrent_states[0][0].transpose(-1, -2))
            if layer.ple is not None:
                out[f"state.{i}.pleconv"] = array(s.conv_states[1][0].T)
                out[f"state.{i}.ngram"] = s.conv_states[2][0].numpy().astype(np.int64)
        else:
            out[f"state.{i}.k"], out[f"state.{i}.v"] = array(s.keys[0]), array(s.values[0])
            out[f"state.{i}.raw"] = array(s.indexer_keys[0])
    return out


def trace_of(models: Models, seen: Recorder, n_rows: int) -> Arrays:
    """The arrays of --level full."""
    out: Arrays = {"final.mix": array(seen.rows("final"))}
    for i, layer in enumerate(models.trunk.model.layers):
        p = f"L{i}"
        for name, source, part in (
            ("in", "in", 0), ("out", "out", 0), ("attn.mix", "attn.hc", 0), ("attn.inject", "attn.hc", 2),
            ("mlp.mix", "mlp.hc", 0), ("mlp.inject", "mlp.hc", 2), ("attn.out", "attn", 0), ("moe.out", "moe", 0),
            ("router.w", "router", 1),
        ):  # fmt: skip
            out[f"{p}.{name}"] = array(seen.rows(f"{p}.{source}", part))
        out[f"{p}.router.ids"] = seen.rows(f"{p}.router", 2).numpy().astype(np.int64)
        if layer.ple is not None:
            out[f"{p}.ple"] = array(seen.rows(f"{p}.ple"))
        if layer.layer_type != "linear_attention":
            out[f"{p}.select"] = seen.selection(i, n_rows)
    return out


def drafts_of(models: Models, ids: torch.Tensor, wide: torch.Tensor, token: torch.Tensor, depth: int) -> Arrays:
    """The head on the prompt's rows, then a greedy recursion of the given depth from the last one."""
    out: Arrays = {}
    assert models.head is not None
    embed, rotary = models.trunk.model.embed_tokens, models.trunk.model.rotary_emb
    cache = DynamicCache(config=models.head.config)
    if ids.shape[1] > 1:
        h = models.head.step(wide[:, :-1], embed(ids[:, 1:]), cache, rotary)
        s = cache.layers[0]
        out |= {"mtp.hyper": array(h[0]), "mtp.logits": array(models.head_logits(h))}
        out |= {"mtp.k": array(s.keys[0]), "mtp.v": array(s.values[0]), "mtp.raw": array(s.indexer_keys[0])}
    feed, chain, rows = wide[:, -1:], [], []
    for _ in range(depth):
        feed = models.head.step(feed, embed(token), cache, rotary)
        logits = models.head_logits(feed)
        token = logits[-1:].argmax(-1)[None]
        chain.append(int(token))
        rows.append(array(logits[-1]))
    return out | {"mtp.chain": np.array(chain, np.int64), "mtp.chain_logits": np.stack(rows)}


def router_gap(models: Models, seen: Recorder) -> float:
    """Smallest relative distance between the last expert taken and the first one left."""
    gap, k = 1.0, models.config.num_experts_per_tok
    for i in range(len(models.trunk.model.layers)):
        p = torch.softmax(seen.rows(f"L{i}.router").float(), -1).sort(-1, descending=True).values
        if k < models.config.num_experts:
            gap = min(gap, ((p[:, k - 1] - p[:, k]) / p[:, 0]).min().item())
    return gap


def run(
    models: Models,
    ids: list[int],
    chunks: list[int] | None = None,
    tie: str = "lowest",
    full: bool = False,
    drafts: int = 3,
) -> Arrays:
    """The arrays of compare.py's docstring."""
    chunks = list(chunks or [len(ids)])
    assert sum(chunks) == len(ids), "chunks must cover the ids"
    x, cache, logits, at, gaps = torch.tensor([list(ids)]), DynamicCache(config=models.config), [], 0, {}
    out: Arrays = {"ids": np.array(ids, np.int64), "chunks": np.array(chunks, np.int64)}
    with block_choice(tie, gaps):
        seen = Recorder(models, full)
        for n in chunks:
            logits.append(models.trunk(input_ids=x[:, at : at + n], cache=cache, use_cache=True).logits[0])
            at += n
        seen.close()
        rows, wide = torch.cat(logits), seen.rows("hyper")
        out |= {"logits": array(rows), "hyper": array(wide), **state_of(models, cache)}
        if full:
            out |= trace_of(models, seen, len(ids))
        if models.head is not None:
            out |= drafts_of(models, x, wide[None], rows[-1:].argmax(-1)[None], drafts)
    out["cut.qsa"], out["cut.router"] = np.float32(gaps.get("qsa", 1.0)), np.float32(router_gap(models, seen))
    out["cut.zero_ties"] = np.int64(gaps.get("ties", 0))
    return out
