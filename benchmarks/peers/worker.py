"""One engine behind a pipe: reads JSON requests line by line, answers each with one line. Run by bench_peers.py.

Requests: {"do": "forms"}; {"do": "open", "form": F}; {"do": "decode", "ids": [...], "n": N} gives the ids and the
seconds between the first token and the last; {"do": "prefill", "ids": [...]} gives the seconds to the first token.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Yields the greedy tokens behind a prompt, without end.
Stream = Callable[[list[int]], Iterator[int]]


def timed(tokens: Iterable[int], n: int) -> dict[str, Any]:
    started, first, ids = time.perf_counter(), 0.0, []
    for token in tokens:
        ids.append(int(token))
        if len(ids) == 1:
            first = time.perf_counter()
        if len(ids) == n:
            break
    return {"ids": ids, "prefill": first - started, "decode": time.perf_counter() - first}


def serve(version: str, forms: dict[str, Callable[[], Stream]]) -> None:
    """Answers until the input ends. Whatever else the engine prints goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    stream: Stream | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "forms":
                out: dict[str, Any] = {"version": version, "forms": list(forms)}
            elif request["do"] == "open":
                stream = None
                stream = forms[request["form"]]()
                out = {}
            else:
                assert stream is not None
                out = timed(stream(request["ids"]), request.get("n", 1))
        except Exception as error:
            out = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(out) + "\n")
        answers.flush()
