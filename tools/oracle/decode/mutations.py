"""Deliberately wrong copies of the independent decoder, and how many committed fixtures each turns red.

    mutations.py FIXTURES [NAME ...]      FIXTURES: tests/golden/decode; NAME: some of the names below

A mutation that turns none red is a rule that no fixture guards; it exits 1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# name -> file, text that occurs once, replacement
MUTATIONS: dict[str, tuple[str, str, str]] = {
    "no head-exit re-arm": (
        "decoder.py",
        "                self.pending = primary  # emitted, never forwarded: the final commit's\n",
        "",
    ),
    "no history row in the final commit": (
        "decoder.py",
        "                    self.m.append([self.at[1]], [self.pending])",
        "                    pass",
    ),
    "speculative history rows kept": (
        "decoder.py",
        "        del history[mark + 1 :]  # the primary's row stays\n",
        "",
    ),
    "primary's history row dropped": ("decoder.py", "del history[mark + 1 :]", "del history[mark:]"),
    "correction from p": (
        "decoder.py",
        "self.draws.pick(law.residual(d) if law else residual(p, qs[d]))",
        "self.draws.pick(law.residual(d) if law else p)",
    ),
    "deeper drafts see the trunk hidden": (
        "decoder.py",
        "row, feed = self.m.draft(feed, token, d + 1, history)",
        "row, _ = self.m.draft(feed, token, d + 1, history)",
    ),
    "no bonus on the last free slot": (
        "decoder.py",
        'if len(self.toks) >= self.limit or self.env.get("MTPLX_OMIT',
        'if len(self.toks) + 1 >= self.limit or self.env.get("MTPLX_OMIT',
    ),
    "bonus after an accepted stop": (
        "decoder.py",
        '            self.origin = "accepted_draft"\n            return "leave"\n        if len',
        '            self.origin = "accepted_draft"\n        if len',
    ),
    "drafts not cut to the limit": (
        "decoder.py",
        "min(self.depth, self.limit - len(self.toks))",
        "self.depth",
    ),
    "correction forwarded in the capture lane": (
        "decoder.py",
        "            self.pending = fix\n            self.n[",
        "            self.n[",
    ),
    "correction's history row appended": (
        "decoder.py",
        "self.commit_rows([o[1] for o in outs[: len(taken)]], taken)",
        "self.commit_rows([o[1] for o in outs[: len(taken + extra)]], taken + extra)",
    ),
    "nucleus on the renormalised top-k": (
        "rules.py",
        "mass = np.where(nucleus(mass, top_p), mass, 0.0)",
        "mass = np.where(nucleus(mass / mass.sum(), top_p), mass, 0.0)",
    ),
    "top_p 0 keeps the best only": (
        "rules.py",
        "    if 0 < top_p < 1:\n        m =",
        "    if 0 <= top_p < 1:\n        top_p = top_p or 1e-9\n        m =",
    ),
    "sampling in rank order": (
        "rules.py",
        "    by_id = np.argsort(ids)\n",
        "    by_id = np.arange(len(ids))\n",
    ),
    "highest ids on ties": (
        "rules.py",
        'return ids[np.argsort(-values[ids], kind="stable")][:k]',
        'return ids[::-1][np.argsort(-values[ids[::-1]], kind="stable")][:k]',
    ),
    "temperature by division": (
        "rules.py",
        "penalised(row, dtype, cfg, counts, overlay) * np.float32(1.0 / t)",
        "penalised(row, dtype, cfg, counts, overlay) * np.float32(1.0 / t + 1e-6)",
    ),
    "penalty not rounded to the row's dtype": (
        "rules.py",
        "step = round_to(np.array([-np.float32(delta)]), dtype)[0]",
        "step = -np.float32(delta)",
    ),
    "penalties not clamped": ("rules.py", "return min(max(value, -2.0), 2.0)", "return value"),
    "penalties over the prompt": (
        "decoder.py",
        "Counter(self.toks) + Counter(more or [])",
        "Counter(self.prompt + self.toks) + Counter(more or [])",
    ),
    "penalties without the in-block prefix": ("decoder.py", "self.counts(drafts[:d]), None", "self.counts(), None"),
    "draft proposals penalised": (
        "decoder.py",
        "token, q = sample(row, self.draft_cfg, self.draws)",
        'token, q = sample(row, self.spec.get("draft_sampler") or self.cfg, self.draws, self.counts())',
    ),
    "no final capture after AR": (
        "decoder.py",
        "                self.m.forward([self.toks[-1]])\n                final",
        "                final",
    ),
    "copy keeps the wrong row": ("decoder.py", "self.at = outs[kept]\n", "self.at = outs[0]\n"),
    "copy forgets the primary's history row": (
        "decoder.py",
        "self.commit_rows([self.at[1]] + [o[1] for o in outs[:kept]], [primary, *taken])",
        "self.commit_rows([o[1] for o in outs[:kept]], taken)",
    ),
    "copy goes on in the re-forward lane": ("decoder.py", "            self.copying = False\n", ""),
    "no back-off doubling": ("machine.py", "self.backoff = min(2 * self.backoff, 4096)", "self.backoff = 64"),
    "copy average starts at 0": (
        "machine.py",
        "self.average, self.rounds, self.suspend, self.backoff = 0.5,",
        "self.average, self.rounds, self.suspend, self.backoff = 0.0,",
    ),
    "copy never on probation": (
        "machine.py",
        "cap = 24 if self.rounds >= 2 and self.average >= 0.5 else 8",
        "cap = 24",
    ),
    "newest match whatever its length": ("machine.py", "if best is None or ext > best[1]:", "if best is None:"),
    "accept only below": (
        "replay.py",
        'ok = draws.u() <= accept_p(p, q, rec["draft_token"])',
        'ok = draws.u() < accept_p(p, q, rec["draft_token"])',
    ),
    "left-sided search": ("rules.py", 'self.rng.random(), side="right")', 'self.rng.random(), side="left")'),
    "no draw for a support of one": (
        "rules.py",
        '        self.trace += "c"\n',
        '        if len(dist.ids) == 1:\n            return int(dist.ids[0])\n        self.trace += "c"\n',
    ),
    "history counter counts staged rows": (
        "decoder.py",
        "            self.appended += len(tokens)\n",
        "            self.appended += len(tokens) + 1\n",
    ),
    "stop goes to the consumer": (
        "machine.py",
        "new = [t for t in new if t not in self.stops]",
        "new = list(new)",
    ),
    "repetition trim off by a copy": ("machine.py", "del toks[n - best[3] :]", "del toks[n - best[3] + best[1] :]"),
    "no hold-back": ("machine.py", "        if self.window <= 0:\n", "        if self.window >= 0:\n"),
    "block law: standard coin": ("decoder.py", "(law.coins[d] if law else accept_p", "(accept_p"),
    "block law: unscaled residual": (
        "rules.py",
        "residual(self.ps[d], self.qs[d], *self.scales[d])",
        "residual(self.ps[d], self.qs[d])",
    ),
    "resume forwards a long suffix in one piece": (
        "replay.py",
        'suffix if len(suffix) <= rec["fused_max"] else suffix[:-1]',
        "suffix",
    ),
}


def red(fixtures: Path, mutation: tuple[str, str, str] | None) -> int:
    """Records that a copy of the decoder with this mutation gets wrong; a crash counts as all that follow it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "decode"
        shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutation:
            file, old, new = mutation
            text = (copy / file).read_text()
            if text.count(old) != 1:
                raise SystemExit(f"{file}: {old!r} occurs {text.count(old)} times")
            (copy / file).write_text(text.replace(old, new))
        wrong = 0
        for path in sorted(fixtures.glob("*.jsonl.gz")):
            done = subprocess.run(
                [sys.executable, "-B", copy / "replay.py", path], capture_output=True, text=True, check=False
            )
            counts = re.search(r"(\d+)/(\d+) equal", done.stdout)
            wrong += int(counts[2]) - int(counts[1]) if counts else 1
        return wrong


def main() -> None:
    fixtures, names = Path(sys.argv[1]), sys.argv[2:] or list(MUTATIONS)
    if red(fixtures, None):
        raise SystemExit("the decoder itself is red")
    silent = 0
    for name in names:
        count = red(fixtures, MUTATIONS[name])
        silent += count == 0
        print(f"{count:6d}  {name}", flush=True)
    sys.exit(1 if silent else 0)


if __name__ == "__main__":
    main()
