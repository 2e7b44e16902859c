#!/usr/bin/env python3
"""Run the PyTorch reference on a qwen4_exp checkpoint and dump what it computed.

    compare.py CKPT OUT.npz --ids 5,17,151,3 [--chunks 2,1,1] [--dtype f32|bf16]
               [--tie lowest|torch] [--level full|golden] [--drafts K]
    compare.py --diff A.npz B.npz [--tol 1e-4]

CKPT is a directory in the released layout (make_tiny.py writes one) or an MTPLX
pack (affine-quantised body, ngram-table.safetensors, mtp.safetensors); a pack is
dequantised exactly, norm weights moved back to the zero-centred convention.  Needs
torch and transformers with qwen4_exp; nothing is downloaded.  --chunks feeds the
prompt in several cached forwards whose lengths must sum to the number of ids
(default one forward).  --tie lowest is the selection contract of reference/model.md
(8.4: lowest ids among zero scores); --tie torch is whatever torch.topk does.
Every array is float32 unless noted, batch removed.

Always written:
  ids [T] int64, chunks [n] int64
  logits [T,V]           hyper [T,hc*H]  widened stream before the final mixer
  state.<i>.conv [3,C]   last kernel-1 pre-convolution rows (q|k|v), zero padded
  state.<i>.delta [Hv,Dv,Dk]      recurrent state (note: value dim first)
  state.<i>.k / .v [Hkv,T,D]      rotated keys, values of an attention layer
  state.<i>.raw [T,Di]            indexer keys before pooling, norm and rotation
  state.<i>.pleconv [9,hc*H]      normalised conv rows, zero padded
  state.<i>.ngram [2] int64       last ids, eos padded
  cut.qsa  smallest relative gap between the last kept and first dropped block score,
           rows whose cut falls inside a run of equal scores left out
  cut.zero_ties  int64, number of such rows (the tie rule decides them; in practice the scores are zero)
  cut.router  the gap for the router probabilities
With MTP tensors in CKPT:
  mtp.logits [T-1,V]     row t drafts token t+2 from hyper[t] and id[t+1]
  mtp.hyper [T-1,hc*H]   the head's own stream (input of the next recursion)
  mtp.k/.v/.raw          its attention cache
  mtp.chain [K] int64, mtp.chain_logits [K,V]   greedy recursion of depth K that
                         starts from hyper[T-1] and argmax(logits[T-1])
--level full adds, per layer i and forward order:
  L<i>.in, L<i>.ple, L<i>.attn.mix, L<i>.attn.inject, L<i>.attn.out, L<i>.mlp.mix,
  L<i>.mlp.inject, L<i>.router.ids, L<i>.router.w, L<i>.moe.out, L<i>.out,
  L<i>.select [T,Tk] bool (attention layers, one row per query), final.mix
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from reference import build_models, run


def diff(a, b, tol):
    bad = 0
    for k in sorted(set(a) | set(b)):
        if k == "chunks" or k.startswith("cut."):
            continue
        if k not in a or k not in b:
            print(f"{k}: only in {'first' if k in a else 'second'}")
            continue
        if a[k].shape != b[k].shape:
            print(f"{k}: shape {a[k].shape} against {b[k].shape}")
            bad += 1
            continue
        d = np.abs(a[k].astype(np.float64) - b[k].astype(np.float64)).max() if a[k].size else 0.0
        bad += d > tol
        print(f"{k}: {d:.3e}{'  <-- over tolerance' if d > tol else ''}")
    return bad


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("paths", nargs=2)
    ap.add_argument("--diff", action="store_true")
    ap.add_argument("--tol", type=float, default=1e-4)
    ap.add_argument("--ids", default="")
    ap.add_argument("--chunks", default="")
    ap.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    ap.add_argument("--tie", choices=("lowest", "torch"), default="lowest")
    ap.add_argument("--level", choices=("golden", "full"), default="full")
    ap.add_argument("--drafts", type=int, default=3)
    a = ap.parse_args()
    if a.diff:
        sys.exit(diff(dict(np.load(a.paths[0])), dict(np.load(a.paths[1])), a.tol) > 0)
    ids = [int(s) for s in a.ids.split(",") if s]
    chunks = [int(s) for s in a.chunks.split(",") if s] or None
    out = run(build_models(Path(a.paths[0]), a.dtype), ids, chunks, a.tie, a.level == "full", a.drafts)
    np.savez_compressed(a.paths[1], **out)
    print(
        f"{a.paths[1]}: {len(out)} arrays, cut.qsa {out['cut.qsa']:.2e}, zero ties {out['cut.zero_ties']}, "
        f"cut.router {out['cut.router']:.2e}"
    )


if __name__ == "__main__":
    main()
