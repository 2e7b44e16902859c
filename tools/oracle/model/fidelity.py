"""How far packs are from their bf16 original: teacher-forced on Python files outside the standard library.

    fidelity.py CHECKPOINT SITE_PACKAGES PACK...        (torch environment)

Per pack: share of positions with the same greedy choice, mean KL(original || pack), size. Float32 on both sides, a pack
dequantised exactly. The windows are tokens 200..700 of each of FILES: long enough for sparse attention.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import torch
from reference import block_choice, build_models
from tokenizers import Tokenizer

FILES = (
    "_pytest/fixtures.py",  # pytest 9.2.0
    "click/core.py",  # click 8.5.1
    "hypothesis/core.py",  # hypothesis 6.170.17
    "jinja2/parser.py",  # jinja2 3.1.6
    "numpy/ma/core.py",  # numpy 2.4.6
    "packaging/version.py",  # packaging 26.4
    "pygments/lexer.py",  # pygments 2.21.0
    "rich/console.py",  # rich 15.0.0
    "tqdm/std.py",  # tqdm 4.70.1
    "yaml/scanner.py",  # pyyaml 6.0.4
)
FIRST, COUNT = 200, 500


def log_probs(path: Path, windows: list[list[int]]) -> torch.Tensor:
    with contextlib.redirect_stderr(io.StringIO()):
        model = build_models(path).trunk
    with torch.inference_mode(), block_choice("lowest", {}):
        rows = [model(input_ids=torch.tensor([w]), use_cache=False).logits[0] for w in windows]
    return torch.log_softmax(torch.cat(rows), -1)


def main(checkpoint: str, site: str, *packs: str) -> None:
    tokenizer = Tokenizer.from_file(f"{checkpoint}/tokenizer.json")
    windows = [tokenizer.encode((Path(site) / f).read_text()).ids[FIRST : FIRST + COUNT] for f in FILES]
    original = log_probs(Path(checkpoint), windows)
    print(f"{len(original)} tokens of {len(FILES)} files")
    for pack in packs:
        found = log_probs(Path(pack), windows)
        same = (found.argmax(-1) == original.argmax(-1)).float()
        kl = (original.exp() * (original - found)).sum(-1).mean()
        worst = same.reshape(len(windows), -1).mean(-1).min()
        size = sum(p.stat().st_size for p in Path(pack).iterdir()) / 1e6
        print(f"{pack}: {size:.2f} MB, agreement {same.mean():.2%} (worst file {worst:.1%}), KL {kl:.4f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
