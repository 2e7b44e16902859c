"""Break the decoder line by line and count the fixture records that notice (docs/testing/decode.md).

    python tools/mutate_decode.py [NAME ...]

Each mutation is built into the `dev` preset in place, replayed, and taken back. Exit code 1 if one stays green, 2 if
the tree does not replay to begin with. Takes
about a minute each; run it on a clean tree and rebuild afterwards.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = sorted((ROOT / "tests" / "golden" / "decode").glob("*.jsonl.gz"))


@dataclass(frozen=True)
class Mutation:
    """`old`, as it stands `count` times in csrc/`file`, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    count: int = 1


MUTATIONS = (
    Mutation("no head-exit re-arm", "decode/mtp.cpp", "    t.pending = primary_;\n", ""),
    Mutation(
        "no history row in the final commit",
        "decode/decoder.cpp",
        "t.network.append_history(t.tip->hidden_row(), {&token, 1});",
        "",
    ),
    Mutation(
        "speculative history rows kept",
        "decode/mtp.cpp",
        "t.network.truncate_history(history_mark_ + 1);",
        "",
        3,
    ),
    Mutation(
        "the primary's history row dropped",
        "decode/mtp.cpp",
        "truncate_history(history_mark_ + 1)",
        "truncate_history(history_mark_)",
        3,
    ),
    Mutation("correction from p", "decode/mtp.cpp", ": sampling::residual(p, q)", ": p"),
    Mutation("deeper drafts fed the trunk's hidden", "decode/mtp_draft.cpp", "      hidden = step.hidden;\n", ""),
    Mutation(
        "no bonus on the last free slot",
        "decode/mtp.cpp",
        "phase_ = Phase::head;\n  if (t.room() <= 0) {",
        "phase_ = Phase::head;\n  if (t.room() <= 1) {",
    ),
    Mutation("bonus not pending", "decode/mtp.cpp", "  t.pending = token;\n", ""),
    Mutation("no draft after a stop tested", "decode/mtp.cpp", "if (t.is_stop(draft)) {", "if (false) {", 2),
    Mutation("penalties without the in-block prefix", "decode/mtp.cpp", "    prefix[draft]++;\n", "", 2),
    Mutation(
        "penalties over the prompt",
        "decode/turn.cpp",
        "      repetition_(this->options.repetition) {\n",
        "      repetition_(this->options.repetition) {\n  for (int32_t token : this->prompt) {\n"
        "    counts[token]++;\n  }\n",
    ),
    Mutation("AR without final capture", "decode/decoder.cpp", "    t.pending = t.tokens.back();\n", ""),
    Mutation(
        "copy round with the wrong kept row",
        "decode/mtp_copy.cpp",
        "t.tip = Tip{read, out->hidden, accepted};",
        "t.tip = Tip{read, out->hidden, accepted > 0 ? accepted - 1 : 0};",
    ),
    Mutation("no back-off doubling", "decode/context_copy.cpp", "std::min(2 * backoff_, kLastBackoff)", "backoff_"),
    Mutation("wrong starting copy average", "decode/context_copy.cpp", "kStartAverage = 0.5", "kStartAverage = 0.4"),
    Mutation(
        "oldest copy match first",
        "decode/context_copy.cpp",
        "extension > best.extension",
        "extension >= best.extension",
    ),
    Mutation(
        "history counter with staged rows",
        "decode/mtp_draft.cpp",
        "      t.statistics.drafted_tokens++;\n",
        "      t.statistics.drafted_tokens++;\n      history_appended_++;\n",
    ),
    Mutation(
        "nucleus on the renormalised top-k",
        "sampling/distribution.cpp",
        "    cut_nucleus(k, params_.top_p,",
        "    divide(mass, numpy_sum(mass));\n    cut_nucleus(k, params_.top_p,",
    ),
    Mutation(
        "sampling in rank order",
        "sampling/distribution.cpp",
        "return candidates_[a].id < candidates_[b].id;",
        "return a < b;",
    ),
    Mutation(
        "nucleus keeps its crossing entry out",
        "sampling/distribution.cpp",
        "if (!(before < top_p)) {",
        "if (!(before + m < top_p)) {",
    ),
    Mutation("ties by descending id", "sampling/distribution.cpp", ": a.id < b.id;", ": a.id > b.id;"),
    Mutation(
        "a divide for the temperature",
        "sampling/scan.cpp",
        "load<W>(x + i + j * W) * scale",
        "load<W>(x + i + j * W) / (1.0f / scale)",
    ),
    Mutation(
        "penalty rounded after the sum only",
        "sampling/row.cpp",
        "const float step = round_to(-static_cast<float>(amount), row.dtype);",
        "const float step = -static_cast<float>(amount);",
    ),
    Mutation(
        "acceptance by <",
        "sampling/draws.cpp",
        "generator_.uniform() <= probability",
        "generator_.uniform() < probability",
    ),
    Mutation("left-sided search", "sampling/draws.cpp", "if (sum / total > u) {", "if (sum / total >= u) {"),
    Mutation(
        "one more draw an acceptance",
        "sampling/draws.cpp",
        "  trace_ += 'u';\n",
        "  trace_ += 'u';\n  generator_.uniform();\n",
    ),
    Mutation("last prompt token in the body", "decode/prefill.cpp", "  if (left == 1 || fused_) {", "  if (true) {"),
    Mutation("block residual without its credit", "sampling/block_verify.cpp", "step.credit * p[token]", "p[token]"),
    Mutation(
        "block look-ahead capped at 1",
        "sampling/block_verify.cpp",
        "water_level(q.mass, base, reach, budget)",
        "water_level(q.mass, base, 1.0, budget)",
    ),
)


def build() -> None:
    subprocess.run(
        ["cmake", "--build", "--preset", "dev", "--target", "_qwenmtp_testing"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )


def red_records() -> int:
    """Records that fail; of a file whose replay dies, one."""
    red = 0
    for path in FIXTURES:
        command = [sys.executable, str(ROOT / "tools" / "replay.py"), str(path)]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        red += int(lines[-1].split()[2]) if lines and lines[-1].endswith(" failed") else 1
    return red


def main(names: list[str]) -> int:
    build()
    if red_records():
        print("the records do not replay on this tree, expected a clean one with the modules in python/")
        return 2
    green = []
    for mutation in MUTATIONS:
        if names and mutation.name not in names:
            continue
        path = ROOT / "csrc" / mutation.file
        text = path.read_text()
        if text.count(mutation.old) != mutation.count:
            print(f"{mutation.name}: the line stands {text.count(mutation.old)} times, expected {mutation.count}")
            green.append(mutation.name)
            continue
        try:
            path.write_text(text.replace(mutation.old, mutation.new))
            build()
            red = red_records()
        finally:
            path.write_text(text)
        print(f"{red:6d}  {mutation.name}", flush=True)
        if not red:
            green.append(mutation.name)
    build()
    return 1 if green else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
