"""The cases of each kernel family: shapes that ship, and ragged ones."""

from . import gdn, hyper, moe, ple, rows

ALL = [*gdn.CASES, *rows.CASES, *hyper.CASES, *moe.CASES, *ple.CASES]
