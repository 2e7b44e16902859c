"""Runs one command under a memory cap for its whole process tree, a stall limit and a wall limit; refuses to let two
supervised commands overlap on one host.

    python -m qwenmtp.bench.supervisor CAP_MIB STALL_S WALL_S --command PROGRAM ARGS...
    python -m qwenmtp.bench.supervisor CAP_MIB STALL_S WALL_S PYTEST_ARGS...

Memory is the physical footprint on macOS and the proportional set size (PSS) on Linux, summed over the command and all
its descendants. Any byte of output counts as progress. At a limit the tree gets SIGTERM, five seconds later SIGKILL;
what outlives its command is ended the same way. Output passes through; its last MiB goes into the receipt.

Exit status: the command's own (128 + n for a signal), 124 stall or wall limit, 137 memory cap, 125 the supervisor
failed or was ended, 75 another supervised command kept the host for too long.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

POLL_S = 0.1
GRACE_S = 5.0
KEEP_BYTES = 1 << 20
LOCK = Path("/tmp/qwenmtp-supervisor.lock")
EXIT_LIMIT, EXIT_MEMORY, EXIT_SUPERVISOR, EXIT_BUSY = 124, 137, 125, 75
_MIB = 1 << 20
_INTERRUPTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one supervised run came to; `limit_fired` is None, `memory`, `stall`, `wall` or `signal`."""

    argv: list[str]
    exit: int
    limit_fired: str | None
    wall_s: float
    peak_bytes: int
    cap_bytes: int
    pressure: list[float]
    output: str

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON-ready object."""
        return asdict(self)


class _Linux:
    """Process table, memory and pressure from /proc. This process adopts orphans of the tree, so none can leave it."""

    def __init__(self) -> None:
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)

    def table(self) -> dict[int, tuple[int, int]]:
        """pid -> (parent, start time) of every process that is not a zombie."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if fields[0] != "Z":
                        found[int(entry.name)] = (int(fields[1]), int(fields[19]))
        return found

    def footprint(self, pid: int) -> int:
        """Bytes; 0 when the process is gone or not ours to see."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        return 0

    def pressure(self) -> float:
        """Share of the last ten seconds in which some task waited for memory, in percent."""
        with contextlib.suppress(OSError):
            for field in Path("/proc/pressure/memory").read_text().split():
                if field.startswith("avg10="):
                    return float(field.removeprefix("avg10="))
        return 0.0


class _Mac:
    """The same from libproc; the layouts are those of sys/proc_info.h and sys/resource.h."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(None)

    def table(self) -> dict[int, tuple[int, int]]:
        pids = (ctypes.c_int * 65536)()
        n = self._lib.proc_listallpids(pids, ctypes.sizeof(pids))
        info, size, found = (ctypes.c_uint32 * 34)(), 136, {}
        zombie = 5
        for pid in pids[:n]:
            tbsdinfo = 3
            if self._lib.proc_pidinfo(pid, tbsdinfo, ctypes.c_uint64(0), info, size) == size and info[1] != zombie:
                found[pid] = (info[4], info[30] | info[31] << 32)
        return found

    def footprint(self, pid: int) -> int:
        version_4, lifetime_max_phys_footprint = 4, 2 + 28
        usage = (ctypes.c_uint64 * 64)()
        return 0 if self._lib.proc_pid_rusage(pid, version_4, usage) else usage[lifetime_max_phys_footprint]

    def pressure(self) -> float:
        level, size = ctypes.c_int(0), ctypes.c_size_t(4)
        name = b"kern.memorystatus_vm_pressure_level"
        self._lib.sysctlbyname(name, ctypes.byref(level), ctypes.byref(size), None, 0)
        return float(level.value)


class _Tree:
    """A child and everything that ever descended from it, told apart from reused ids by start times."""

    def __init__(self, system: _Linux | _Mac, root: int):
        self._system, self._root = system, root
        self._known: dict[int, int] = {}

    def alive(self) -> list[int]:
        """Living members, newest last. Adopted members that ended are reaped."""
        table = self._system.table()
        members = {pid for pid, start in self._known.items() if pid in table and table[pid][1] == start}
        if self._root in table:
            members.add(self._root)
        me, grown = os.getpid(), True
        while grown:
            grown = False
            for pid, (parent, _) in table.items():
                if pid not in members and pid != me and (parent in members or parent == me):
                    members.add(pid)
                    grown = True
        for pid in self._known.keys() - members - {self._root}:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._known |= {pid: table[pid][1] for pid in members}
        return sorted(members, key=lambda pid: table[pid][1])

    def footprint(self) -> int:
        return sum(self._system.footprint(pid) for pid in self.alive())

    def signal(self, number: int) -> bool:
        """Sends a signal to every living member; whether there was one."""
        members = self.alive()
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return bool(members)

    def end(self) -> None:
        """SIGTERM, and SIGKILL for what is left after the grace."""
        start = time.monotonic()
        self.signal(signal.SIGTERM)
        while self.alive() and time.monotonic() - start < GRACE_S:
            time.sleep(POLL_S / 2)
        while self.signal(signal.SIGKILL) and time.monotonic() - start < GRACE_S + 1:
            time.sleep(POLL_S / 10)


class _Output:
    """Passes the child's output through on threads of its own, so that a blocked reader cannot stop the limits."""

    def __init__(self, child: subprocess.Popen[bytes]):
        self.last = time.monotonic()
        self._lock = threading.Lock()
        self._kept: deque[bytes] = deque()
        self._n_kept = 0
        assert child.stdout is not None
        assert child.stderr is not None
        pairs = ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
        self._threads = [threading.Thread(target=self._pump, args=pair, daemon=True) for pair in pairs]
        for thread in self._threads:
            thread.start()

    def _pump(self, source: IO[bytes], target: Any) -> None:
        sink: BinaryIO | None = target.buffer
        while chunk := os.read(source.fileno(), 1 << 16):
            self.last = time.monotonic()
            with self._lock:
                self._kept.append(chunk)
                self._n_kept += len(chunk)
                while self._n_kept - len(self._kept[0]) >= KEEP_BYTES:
                    self._n_kept -= len(self._kept.popleft())
            if sink is not None:
                try:
                    sink.write(chunk)
                    sink.flush()
                except OSError:
                    sink = None  # nobody reads any more; the child goes on

    def finish(self) -> str:
        """The last MiB, once the pipes are at their end."""
        for thread in self._threads:
            thread.join(timeout=1)
        with self._lock:
            return b"".join(self._kept)[-KEEP_BYTES:].decode(errors="replace")


class _Interrupted(Exception):
    """SIGTERM or SIGINT to the supervisor."""


def supervise(argv: Sequence[str], cap_bytes: int, stall_s: float, wall_s: float) -> Receipt:
    """Runs a command under its limits; on return nothing of it is alive.

    Args:
        argv: Program and arguments.
        cap_bytes: Limit for the memory of the process tree.
        stall_s: Seconds without output.
        wall_s: Seconds in all.

    Raises:
        OSError: The command could not be started.
    """
    system = _Mac() if sys.platform == "darwin" else _Linux()
    start = time.monotonic()
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    tree, output = _Tree(system, child.pid), _Output(child)
    fired: str | None = None
    peak, pressure = 0, [system.pressure()]
    try:
        while child.poll() is None and fired is None:
            peak = max(peak, tree.footprint())
            now = time.monotonic()
            if peak > cap_bytes:
                fired = "memory"
            elif now - start > wall_s:
                fired = "wall"
            elif now - output.last > stall_s:
                fired = "stall"
            else:
                time.sleep(POLL_S)
    except _Interrupted:
        fired = "signal"
    tree.end()
    status = child.wait()
    pressure.append(system.pressure())
    own = status if status >= 0 else 128 - status
    code = {None: own, "memory": EXIT_MEMORY, "signal": EXIT_SUPERVISOR}.get(fired, EXIT_LIMIT)
    elapsed = time.monotonic() - start
    return Receipt(list(argv), code, fired, elapsed, peak, cap_bytes, pressure, output.finish())


@contextlib.contextmanager
def host_lock(path: Path, wait_s: float) -> Iterator[bool]:
    """Whether this process is the only supervisor of the host for the block."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)  # another user's file in a sticky folder must not be opened for creation
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(POLL_S)
            else:
                yield True
                return
    finally:
        os.close(fd)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receipt", type=Path, help="write what happened as JSON")
    parser.add_argument("--lock", type=Path, default=LOCK, help="lock file of the host")
    parser.add_argument("--lock-wait", type=float, default=600.0, metavar="S", help="how long to wait for it")
    parser.add_argument("cap_mib", type=int)
    parser.add_argument("stall_s", type=float)
    parser.add_argument("wall_s", type=float)
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="[--command] PROGRAM ARGS...")
    args = parser.parse_args(arguments)
    if args.rest[:1] == ["--command"]:
        argv = args.rest[1:]
    else:
        argv = [sys.executable, "-m", "pytest", *args.rest] if args.rest else []
    if not argv:
        parser.error("no command")

    def interrupt(number: int, frame: object) -> None:
        for each in _INTERRUPTS:
            signal.signal(each, signal.SIG_IGN)
        raise _Interrupted

    for number in _INTERRUPTS:
        signal.signal(number, interrupt)
    try:
        with host_lock(args.lock, args.lock_wait) as mine:
            if not mine:
                print(f"supervisor: {args.lock} is held by another run", file=sys.stderr)
                return EXIT_BUSY
            receipt = supervise(argv, args.cap_mib * _MIB, args.stall_s, args.wall_s)
        if args.receipt is not None:
            args.receipt.write_text(json.dumps(receipt.to_json(), indent=1) + "\n")
    except (OSError, _Interrupted) as e:
        print(f"supervisor: {e or 'ended while waiting'}", file=sys.stderr)
        return EXIT_SUPERVISOR
    print(
        f"supervisor: exit {receipt.exit}, limit {receipt.limit_fired or 'none'}, {receipt.wall_s:.1f} s, "
        f"peak {receipt.peak_bytes / _MIB:.0f} of {args.cap_mib} MiB",
        file=sys.stderr,
    )
    return receipt.exit


if __name__ == "__main__":
    sys.exit(main())
