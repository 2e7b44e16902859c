"""The cases of each kernel family: shapes that ship, and ragged ones."""

from . import gdn, hyper, moe, ple, qsa, rows, sample

FAMILIES = (gdn, rows, hyper, moe, ple, qsa, sample)
ALL = [case for family in FAMILIES for case in family.CASES]
