"""A server's day: after the first requests, further ones leave nothing behind in memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qwenmtp

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
WARM, REQUESTS, SLACK = 50, 1000, 1.01

PROGRAM = """
import json, sys
from pathlib import Path
import qwenmtp
sizes = []
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])
with qwenmtp.load(sys.argv[1]) as model:
    for i in range(int(sys.argv[2])):
        mode, depth = (("ar", 3), ("mtp", 1), ("mtp", 3), ("mtp", "auto"))[i % 4]
        with model.session(mode=mode, depth=depth) as session:
            ids = [(7 * k * k + 13 * k + i) % 4096 for k in range(8 + 5 * (i % 4))]
            params = qwenmtp.SamplingParams(temperature=(0, 0.8)[i % 2], seed=i)
            for n, _ in enumerate(session.generate(ids, params, max_tokens=6, ignore_stop=True)):
                if i % 10 == 9 and n == 1:
                    session.cancel()
        del session
        sizes.append(resident())
print(json.dumps(sizes))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thousand_requests_leave_memory_flat() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, str(DEMO), str(REQUESTS)]
    run = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    pages = json.loads(run.stdout.splitlines()[-1])
    assert max(pages[WARM:]) <= SLACK * pages[WARM - 1], [pages[i] for i in range(WARM - 1, REQUESTS, 50)]
