"""A model inside an app with its own main loop: `python examples/threaded_app.py [MODEL]`.

The window's thread never waits for the model. It asks a worker, looks into a queue whenever it draws, and may stop the
answer at any time. One worker for each conversation; the model may serve several.
"""

from __future__ import annotations

import queue
import sys
import threading
import time

import qwenmtp
from qwenmtp import Model, QwenMtpError, SamplingParams, Turn


class Conversation:
    """One conversation on a thread of its own; `events` holds text, then the finished Turn or the error."""

    def __init__(self, model: Model):
        self.events: queue.Queue[str | Turn | QwenMtpError] = queue.Queue()
        self._session = model.session()
        self._questions: queue.Queue[str | None] = queue.Queue()
        self._worker = threading.Thread(target=self._work, name="conversation")
        self._worker.start()

    def ask(self, prompt: str) -> None:
        """Answer a prompt soon; returns at once."""
        self._questions.put(prompt)

    def stop(self) -> None:
        """End the running answer at its next token; harmless without one."""
        self._session.cancel()

    def close(self) -> None:
        """Stop, and wait for the worker."""
        self._questions.put(None)
        self.stop()
        self._worker.join()

    def _work(self) -> None:
        while (prompt := self._questions.get()) is not None:
            try:
                for r in self._session.generate(prompt, SamplingParams(seed=7), max_tokens=48):
                    self.events.put(r.text)
                turn = self._session.last_turn
                assert turn is not None
                self.events.put(turn)
            except QwenMtpError as error:
                self.events.put(error)


def main() -> int:
    with qwenmtp.load(sys.argv[1] if len(sys.argv) > 1 else "models/demo") as model:
        conversation = Conversation(model)
        conversation.ask("def main(argv):")
        try:
            while True:  # the app's main loop
                time.sleep(1 / 60)
                while not conversation.events.empty():
                    event = conversation.events.get()
                    if isinstance(event, str):
                        print(event, end="", flush=True)
                    elif isinstance(event, Turn):
                        print(f"\n[{event.finish}, {event.usage['completion']} tokens]")
                        return 0
                    else:
                        print(f"\n[{event.code}: {event}]", file=sys.stderr)
                        return 1
        finally:
            conversation.close()


if __name__ == "__main__":
    sys.exit(main())
