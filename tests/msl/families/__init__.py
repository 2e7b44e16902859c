"""The cases of each kernel family: shapes that ship, and ragged ones."""

from . import gdn, rows

ALL = [*gdn.CASES, *rows.CASES]
