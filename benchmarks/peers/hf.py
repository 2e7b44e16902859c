"""transformers on PyTorch's CPU back end: `hf.py CHECKPOINT WORK`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from worker import Stream, serve

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools" / "oracle" / "model"))
import reference
import torch
import transformers
from transformers.cache_utils import DynamicCache


def opened(path: Path, dtype: torch.dtype) -> Stream:
    model = reference.build_models(path).trunk.to(dtype).eval()
    # The oracle pins eager modules; here its defaults count.
    model.set_attn_implementation("sdpa")
    model.set_experts_implementation("grouped_mm")

    def stream(ids: list[int]) -> Iterator[int]:
        cache, x = DynamicCache(config=model.config), torch.tensor([ids])
        while True:
            row = model(input_ids=x, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
            token = int(row.argmax())
            yield token
            x = torch.tensor([[token]])

    return stream


def main() -> None:
    checkpoint = Path(sys.argv[1])
    forms = {
        "float32": lambda: opened(checkpoint, torch.float32),
        "bfloat16": lambda: opened(checkpoint, torch.bfloat16),
    }
    serve(f"{transformers.__version__} (torch {torch.__version__}, {torch.get_num_threads()} threads)", forms)


if __name__ == "__main__":
    main()
