"""The PyTorch reference (transformers qwen4_exp): trunk, MTP head, block tie rule, state dump."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from layouts import load_checkpoint, pack_experts


def build_models(path: Path, dtype: str):
    cfg, tensors, torch = load_checkpoint(path)
    from transformers.models.qwen4_exp import configuration_qwen4_exp as C
    from transformers.models.qwen4_exp import modeling_qwen4_exp as M

    torch.set_grad_enabled(False)
    want = torch.float32 if dtype == "f32" else torch.bfloat16
    drop = {
        "ngram_sidecar",
        "model_type",
        "mtp",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        "mamba_ssm_dtype",
        "dtype",
    }
    config = C.Qwen4ExpTextConfig(**{k: v for k, v in cfg.items() if k not in drop})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = M.Qwen4ExpForCausalLM(config)
    tensors = pack_experts(tensors, torch)
    trunk, head, shards = {}, {}, {}
    for k, v in tensors.items():
        if k.startswith("mtp."):
            head[k[4:]] = v
        elif ".ngram_embedding.shard_" in k:
            base, idx = k.split(".shard_")
            shards.setdefault(base, {})[int(idx.split(".")[0])] = v
        elif not k.startswith("model.visual."):
            trunk[k.replace("model.language_model.", "model.")] = v
    for base, parts in shards.items():
        trunk[base.replace("model.language_model.", "model.") + ".weight"] = torch.cat(
            [parts[i] for i in range(len(parts))]
        )
    result = model.load_state_dict(trunk, strict=False)
    missing = [m for m in result.missing_keys if "inv_freq" not in m]
    if missing or result.unexpected_keys:
        raise SystemExit(f"checkpoint mismatch: missing {missing[:4]}, unexpected {result.unexpected_keys[:4]}")
    model = model.to(want).eval()
    return cfg, config, model, (Head(M, torch, config, head).to(want).eval() if head else None), torch, M


def Head(M, torch, config, tensors):
    """The MTP head assembled from reference modules (transformers ships none)."""
    nn = torch.nn
    import copy

    class MTPHead(nn.Module):
        def __init__(self):
            super().__init__()
            c = copy.deepcopy(config)
            c.layer_types, c.num_hidden_layers, c.ple_layer_ids = ["indexed_attention"], 1, []
            width = c.hc_count * c.hidden_size
            self.config = c
            self.pre_fc_norm_embedding = M.Qwen4ExpTextRMSNorm(c.hidden_size, eps=c.rms_norm_eps)
            self.pre_fc_norm_hidden = M.Qwen4ExpTextRMSNorm(width, eps=c.rms_norm_eps)
            self.fc_embedding = nn.Linear(c.hidden_size, c.hidden_size, bias=False)
            self.fc_hidden = nn.Linear(c.hidden_size, c.hidden_size, bias=False)
            self.layers = nn.ModuleList([M.Qwen4ExpTextDecoderLayer(c, 0)])
            self.hyper_connection_mixer = M.Qwen4ExpTextGatedResidual(c, use_combine=False)

        def fuse(self, wide, emb):
            c = self.config
            e = self.fc_embedding(self.pre_fc_norm_embedding(emb))
            s = self.pre_fc_norm_hidden(wide).unflatten(-1, (c.hc_count, c.hidden_size))
            return (self.fc_hidden(s) + e.unsqueeze(-2)).flatten(-2)

        def step(self, wide, emb, cache, rotary):
            x = self.fuse(wide, emb)
            n, past = x.shape[1], cache.get_seq_length()
            pos = torch.arange(past + n)[None]
            table = rotary(x, pos[None].expand(3, 1, -1))
            mask = torch.zeros(1, 1, n, past + n, dtype=x.dtype)
            hidden = torch.arange(past + n)[None] > (past + torch.arange(n))[:, None]
            mask[0, 0].masked_fill_(hidden, torch.finfo(x.dtype).min)
            return self.layers[0](x, position_embeddings=table, attention_mask=mask, cache=cache)

    head = MTPHead()
    head.load_state_dict(tensors)
    return head


@contextlib.contextmanager
def block_choice(torch, rule: str, gaps: dict):
    """Watch the indexer's top-k; optionally apply the low-index tie rule."""
    plain = torch.Tensor.topk

    def choose(self, k, dim=-1, *a, **kw):
        if self.dim() != 1:
            return plain(self, k, dim, *a, **kw)
        s = self
        if rule == "lowest":
            n = s.numel()
            adjusted = s - torch.arange(n, dtype=torch.float32) * torch.tensor(1e-12)
            order = torch.sort(adjusted, stable=True).indices[n - k :]
            out = torch.return_types.topk((s[order], order))
        else:
            out = plain(s, k, dim, *a, **kw)
        if k < s.numel():
            top = torch.sort(s, descending=True).values
            if top[k - 1] == top[k]:
                gaps["ties"] = gaps.get("ties", 0) + 1
            else:
                gap = ((top[k - 1] - top[k]) / top[0]).item()
                gaps["qsa"] = min(gaps.get("qsa", 1.0), gap)
        return out

    torch.Tensor.topk = choose
    try:
        yield
    finally:
        torch.Tensor.topk = plain


def run(path, ids, chunks=None, dtype="f32", tie="lowest", level="golden", drafts=3, models=None):
    _cfg, config, model, head, torch, _M = models or build_models(Path(path), dtype)
    from transformers.cache_utils import DynamicCache

    torch.manual_seed(0)
    chunks = list(chunks or [len(ids)])
    assert sum(chunks) == len(ids), "chunks must cover the ids"
    got, gaps, hooks = {}, {}, []

    def keep(name):
        def hook(module, args, output):
            parts = output if isinstance(output, tuple) else (output,)
            got.setdefault(name, []).append([p.detach().clone() if torch.is_tensor(p) else None for p in parts])

        return hook

    def keep_in(name):
        def hook(module, args):
            got.setdefault(name, []).append([args[0].detach().clone()])

        return hook

    hooks.append(model.model.hyper_connection_mixer.register_forward_pre_hook(keep_in("hyper")))
    for i, layer in enumerate(model.model.layers):
        hooks.append(layer.mlp.gate.register_forward_hook(keep(f"L{i}.router")))
        if level == "full":
            hooks.append(layer.register_forward_pre_hook(keep_in(f"L{i}.in")))
            hooks.append(layer.register_forward_hook(keep(f"L{i}.out")))
            hooks.append(layer.attn_hyper_connection.register_forward_hook(keep(f"L{i}.attn.hc")))
            hooks.append(layer.mlp_hyper_connection.register_forward_hook(keep(f"L{i}.mlp.hc")))
            hooks.append(layer.mlp.register_forward_hook(keep(f"L{i}.moe")))
            if layer.ple is not None:
                hooks.append(layer.ple.register_forward_hook(keep(f"L{i}.ple")))
            if layer.layer_type == "linear_attention":
                hooks.append(layer.linear_attn.register_forward_hook(keep(f"L{i}.attn")))
            else:
                hooks.append(layer.self_attn.register_forward_hook(keep(f"L{i}.attn")))
                hooks.append(layer.self_attn.indexer.register_forward_hook(keep(f"L{i}.select")))
    if level == "full":
        hooks.append(model.model.hyper_connection_mixer.register_forward_hook(keep("final")))

    x = torch.tensor([list(ids)], dtype=torch.long)
    cache, logits, at = DynamicCache(config=config), [], 0
    out = {"ids": np.array(ids, np.int64), "chunks": np.array(chunks, np.int64)}
    with block_choice(torch, tie, gaps):
        for n in chunks:
            r = model(input_ids=x[:, at : at + n], cache=cache, use_cache=True)
            logits.append(r.logits[0])
            at += n
        for h in hooks:
            h.remove()

        def f(t):
            return t.float().numpy()

        def cat(name, j=0):
            return torch.cat([c[j][0] if c[j].dim() > 2 else c[j] for c in got[name]])

        out["logits"] = f(torch.cat(logits))
        out["hyper"] = f(cat("hyper"))
        for i, layer in enumerate(model.model.layers):
            s = cache.layers[i]
            if layer.layer_type == "linear_attention":
                out[f"state.{i}.conv"] = f(s.conv_states[0][0, :, 1:].T)
                out[f"state.{i}.delta"] = f(s.recurrent_states[0][0].transpose(-1, -2))
                if layer.ple is not None:
                    out[f"state.{i}.pleconv"] = f(s.conv_states[1][0].T)
                    out[f"state.{i}.ngram"] = s.conv_states[2][0].numpy().astype(np.int64)
            else:
                out[f"state.{i}.k"], out[f"state.{i}.v"] = f(s.keys[0]), f(s.values[0])
                out[f"state.{i}.raw"] = f(s.indexer_keys[0])
            probs = torch.softmax(cat(f"L{i}.router", 0).float(), -1).sort(-1, descending=True).values
            k = config.num_experts_per_tok
            if k < config.num_experts:
                gap = ((probs[:, k - 1] - probs[:, k]) / probs[:, 0]).min().item()
                gaps["router"] = min(gaps.get("router", 1.0), gap)
        if level == "full":
            T = len(ids)
            for i, layer in enumerate(model.model.layers):
                out[f"L{i}.in"], out[f"L{i}.out"] = f(cat(f"L{i}.in")), f(cat(f"L{i}.out"))
                for a, b in (("attn", "attn.hc"), ("mlp", "mlp.hc")):
                    out[f"L{i}.{a}.mix"], out[f"L{i}.{a}.inject"] = f(cat(f"L{i}.{b}")), f(cat(f"L{i}.{b}", 2))
                out[f"L{i}.attn.out"], out[f"L{i}.moe.out"] = f(cat(f"L{i}.attn")), f(cat(f"L{i}.moe"))
                out[f"L{i}.router.w"], ids_ = f(cat(f"L{i}.router", 1)), cat(f"L{i}.router", 2)
                out[f"L{i}.router.ids"] = ids_.numpy().astype(np.int64)
                if layer.ple is not None:
                    out[f"L{i}.ple"] = f(cat(f"L{i}.ple"))
                if layer.layer_type != "linear_attention":
                    full = np.zeros((T, T), bool)
                    row = 0
                    for c in got[f"L{i}.select"]:
                        m = c[0][0, 0].numpy()
                        full[row : row + m.shape[0], : m.shape[1]] = m
                        row += m.shape[0]
                    out[f"L{i}.select"] = full
            out["final.mix"] = f(cat("final"))
        if head is not None:
            emb, rot = model.model.embed_tokens, model.model.rotary_emb
            wide = cat("hyper")[None]
            mc = DynamicCache(config=head.config)
            if len(ids) > 1:
                h = head.step(wide[:, :-1], emb(x[:, 1:]), mc, rot)
                out["mtp.hyper"] = f(h[0])
                out["mtp.logits"] = f(model.lm_head(head.hyper_connection_mixer(h))[0])
                s = mc.layers[0]
                out["mtp.k"], out["mtp.v"], out["mtp.raw"] = f(s.keys[0]), f(s.values[0]), f(s.indexer_keys[0])
            w, tok, chain, rows = wide[:, -1:], torch.cat(logits)[-1:].argmax(-1)[None], [], []
            for _ in range(drafts):
                w = head.step(w, emb(tok), mc, rot)
                lg = model.lm_head(head.hyper_connection_mixer(w))[0]
                tok = lg[-1:].argmax(-1)[None]
                chain.append(int(tok))
                rows.append(f(lg[-1]))
            out["mtp.chain"], out["mtp.chain_logits"] = np.array(chain, np.int64), np.stack(rows)
    out["cut.qsa"], out["cut.router"] = (np.float32(gaps.get(k, 1.0)) for k in ("qsa", "router"))
    out["cut.zero_ties"] = np.int64(gaps.get("ties", 0))
    return out
