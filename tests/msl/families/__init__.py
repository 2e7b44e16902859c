"""The cases of each kernel family: shapes that ship, and ragged ones."""

from . import embed, gdn, hyper, moe, ple, qsa, rows, sample

FAMILIES = (embed, gdn, rows, hyper, moe, ple, qsa, sample)
ALL = [case for family in FAMILIES for case in family.CASES]
