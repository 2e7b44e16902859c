"""The supervisor as a user runs it: limits, exit statuses, the host lock, and nothing left alive."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import qwenmtp

PACKAGE = Path(qwenmtp.__file__).parents[1]
SUPERVISOR = [sys.executable, "-m", "qwenmtp.bench.supervisor"]


@pytest.fixture
def launch(tmp_path):
    """Starts the supervisor with a lock and receipt of its own."""

    def start(cap_mib, stall_s, wall_s, *rest, lock_wait=0):
        env = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONUNBUFFERED": "1"}
        options = ["--receipt", tmp_path / "receipt", "--lock", tmp_path / "lock", "--lock-wait", str(lock_wait)]
        argv = [*SUPERVISOR, *options, str(cap_mib), str(stall_s), str(wall_s), *rest]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)

    return start


@pytest.fixture
def supervise(launch, tmp_path):
    """Runs a Python program under the supervisor; gives (exit status, stdout, stderr, receipt)."""

    def run(cap_mib, stall_s, wall_s, program):
        with launch(cap_mib, stall_s, wall_s, "--command", sys.executable, "-c", textwrap.dedent(program)) as child:
            out, err = child.communicate()
        return child.returncode, out, err, json.loads((tmp_path / "receipt").read_text())

    return run


def gone(pid):
    """Whether a process ended, waiting for the kernel to say so."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("status", [0, 1, 77])
def test_passes_the_exit_status_and_the_output(supervise, status):
    program = f"import sys, time; print('to out'); print('to err', file=sys.stderr); time.sleep(1); sys.exit({status})"
    code, out, err, receipt = supervise(4096, 60, 60, program)
    assert code == status
    assert out == "to out\n"
    assert err.startswith("to err\n")
    assert (receipt["exit"], receipt["limit_fired"]) == (status, None)
    assert "to out" in receipt["output"]
    assert "to err" in receipt["output"]
    assert receipt["peak_bytes"] > 0
    assert receipt["cap_bytes"] == 4096 << 20
    assert len(receipt["pressure"]) == 2


def test_death_by_signal_is_128_more(supervise):
    assert supervise(4096, 60, 60, "import os; os.kill(os.getpid(), 15)")[0] == 128 + 15


def test_silence_is_a_stall(supervise):
    code, out, _, receipt = supervise(4096, 0.5, 60, "import time; print('a'); time.sleep(60)")
    assert (code, out, receipt["limit_fired"]) == (124, "a\n", "stall")


def test_output_without_end_of_line_is_progress(supervise):
    program = "import time\nfor _ in range(20):\n    print('.', end='', flush=True); time.sleep(0.1)"
    code, out, _, _ = supervise(4096, 1.5, 60, program)
    assert (code, out) == (0, "." * 20)


def test_wall_limit(supervise):
    code, _, _, receipt = supervise(4096, 60, 1, "import time\nwhile True:\n    print('busy'); time.sleep(0.05)")
    assert (code, receipt["limit_fired"]) == (124, "wall")


def test_memory_cap(supervise):
    code, _, err, receipt = supervise(150, 60, 60, "import time; a = b'x' * (300 << 20); time.sleep(60)")
    assert (code, receipt["limit_fired"]) == (137, "memory")
    assert receipt["peak_bytes"] > 150 << 20
    assert "limit memory" in err


def test_memory_cap_holds_for_the_whole_tree(supervise):
    code, _, _, receipt = supervise(
        250,
        60,
        60,
        """
        import subprocess, sys, time
        for _ in range(3):
            subprocess.Popen([sys.executable, "-c", "import time; a = b'x' * (100 << 20); time.sleep(60)"])
        time.sleep(60)
        """,
    )
    assert (code, receipt["limit_fired"]) == (137, "memory")


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # a daemon: own session, orphaned
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
os.write(1, b"%d\\n" % os.getpid())
"""


def test_stubborn_tree_with_a_daemon_ends_at_a_limit(supervise):
    code, out, _, _ = supervise(4096, 60, 4, STUBBORN + "time.sleep(600)")  # seconds for two Pythons to start
    assert code == 124
    pids = [int(x) for x in out.split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_daemon_does_not_outlive_a_command_that_ends(supervise):
    code, out, _, receipt = supervise(4096, 60, 60, STUBBORN.replace("SIG_IGN", "SIG_DFL"))
    assert (code, receipt["limit_fired"]) == (0, None)
    assert all(gone(int(pid)) for pid in out.split())


def test_ending_the_supervisor_ends_the_command(launch, tmp_path):
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with launch(4096, 60, 60, "--command", sys.executable, "-c", program) as child:
        pid = int(child.stdout.readline())
        child.send_signal(signal.SIGTERM)
        child.communicate()
    assert child.returncode == 125
    assert json.loads((tmp_path / "receipt").read_text())["limit_fired"] == "signal"
    assert gone(pid)


def test_only_one_on_a_host(launch, tmp_path):
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with launch(4096, 60, 60, "--command", "true", lock_wait=0.3) as child:
            _, err = child.communicate()
        assert child.returncode == 75
        assert "held by another run" in err
        with launch(4096, 60, 60, "--command", "true", lock_wait=60) as child:
            time.sleep(0.3)
            fcntl.flock(lock, fcntl.LOCK_UN)
            child.communicate()
        assert child.returncode == 0


def test_last_mebibyte_is_kept(supervise):
    code, out, _, receipt = supervise(4096, 60, 60, "print('first'); print('x' * (3 << 20)); print('last')")
    assert code == 0
    assert len(out) == len("first\n\nlast\n") + (3 << 20)
    assert len(receipt["output"]) == 1 << 20
    assert receipt["output"].endswith("x\nlast\n")


def test_a_program_that_does_not_exist(launch):
    with launch(4096, 60, 60, "--command", "/nowhere/program") as child:
        _, err = child.communicate()
    assert child.returncode == 125
    assert "/nowhere/program" in err


def test_without_command_runs_pytest(launch, tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(): assert False\n")
    with launch(4096, 60, 60, str(tmp_path / "test_it.py"), "-q", "-p", "no:cacheprovider") as child:
        out, _ = child.communicate()
    assert child.returncode == 1
    assert "1 failed" in out


def test_usage(launch):
    with launch(4096, 60, 60) as child:
        child.communicate()
    assert child.returncode == 2
