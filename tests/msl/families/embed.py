"""Cases of metal/embed.metal."""

from collections.abc import Sequence

import numpy as np
from msl.families.rows import packed
from msl.harness.case import Array, Case, normal, rounding, wide
from msl.harness.spec import load
from oracle.naive_rows import codes

KERNELS = load("embed")
VOCAB = 50


def case(
    shape: str, dtype: str, stored: str, rows: int, n_in: int, bits: int, group: int = 32, copies: int = 4
) -> Case:
    """`bits` 0 is a dense table; `stored` its type, or that of scales and biases."""

    def build(rng: np.random.Generator) -> list[Array]:
        ids = rng.integers(0, VOCAB, rows).astype(np.int32)
        ids[0] = VOCAB - 1
        ids[-1] = -1 if rows > 2 else ids[-1]
        return [ids, *(packed(rng, stored, bits, group, VOCAB, n_in) if bits else [normal(rng, stored, VOCAB, n_in)])]

    def oracle(arrays: Sequence[Array]) -> Sequence[Array]:
        ids, words, *rest = arrays
        ids = np.maximum(ids, 0)
        if not bits:
            return [np.tile(wide(words)[0][ids], copies)]
        scales, biases = (np.repeat(a, group, 1) for a in wide(*rest))
        return [np.tile((rounding(dtype)(scales * codes(words, bits)) + biases)[ids], copies)]

    template: dict[str, str | int] = {"T": dtype, "W": stored, "IN": n_in}
    if bits:
        template |= {"BITS": bits, "GROUP": group}
    name = f"{shape}-{rows}x{n_in}" + (f"-{bits}bit{group}" if bits else "")
    kernel = KERNELS["embed_affine" if bits else "embed_dense"]
    return Case(kernel, name, template | {"COPIES": copies}, build, oracle)


CASES = [
    *(case("ragged", "float32", "bfloat16", 2, 96, bits, copies=1) for bits in (2, 3, 4, 5, 6, 8)),
    case("ragged", "bfloat16", "float32", 3, 128, 5, 64, copies=3),
    case("ragged", "float32", "float16", 2, 264, 0, copies=1),
    case("demo", "float32", "bfloat16", 2, 256, 8, 64),
    case("demo", "bfloat16", "bfloat16", 2, 256, 0),
    case("released", "bfloat16", "bfloat16", 2, 2560, 4, 64),
    case("released", "bfloat16", "bfloat16", 1, 2560, 8, 64),
    case("released", "bfloat16", "bfloat16", 4, 2560, 0),
]
