"""The thread that writes checkpoints behind the user's back: latest job of a key wins, each waits for its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

Job = Callable[[], bool]


class Writer:
    """Jobs on one thread, started with the first.

    Args:
        again_s: Seconds after which a job that could not run yet is tried again.
    """

    def __init__(self, again_s: float = 2.0):
        self._again_s = again_s
        self._jobs: dict[Hashable, tuple[float, Job]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def put(self, key: Hashable, job: Job, delay_s: float) -> None:
        """Replaces the key's waiting job.

        Args:
            key: Whose job.
            job: Returns False to be tried again; may not raise.
            delay_s: Seconds from now.
        """
        with self._changed:
            if self._closing:
                return
            self._jobs[key] = (time.monotonic() + delay_s, job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="qwenmtp-checkpoints", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, key: Hashable) -> None:
        """Forgets the key's waiting job."""
        with self._changed:
            self._jobs.pop(key, None)

    def close(self, timeout_s: float) -> bool:
        """Runs what waits, now and once, and ends the thread. False when that took too long."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        while (due := self._next()) is not None:
            key, job = due
            if not job():
                with self._changed:
                    if not self._closing:
                        self._jobs.setdefault(key, (time.monotonic() + self._again_s, job))

    def _next(self) -> tuple[Hashable, Job] | None:
        with self._changed:
            while True:
                if self._jobs:
                    key, (due, job) = min(self._jobs.items(), key=lambda item: item[1][0])
                    wait = due - time.monotonic()
                    if wait <= 0 or self._closing:
                        del self._jobs[key]
                        return key, job
                    self._changed.wait(wait)
                elif self._closing:
                    return None
                else:
                    self._changed.wait()
