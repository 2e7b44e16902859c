"""examples/: each runs as a user would run it, and behaves when its user goes away."""

import asyncio
import contextlib
import http.client
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

import qwenmtp

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(Path(qwenmtp.__file__).parents[1])}
PROMPT = "def main(argv):"


@pytest.fixture(scope="module")
def answer() -> str:
    """What the model says to the prompt with the examples' seed and length."""
    with qwenmtp.load(str(ROOT / "models" / "demo")) as model, model.session() as session:
        return "".join(r.text for r in session.generate(PROMPT, qwenmtp.SamplingParams(seed=7), max_tokens=48))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, str(ROOT / "examples" / "asyncio_server.py"), str(ROOT / "models" / "demo"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, text=True) as server:
        assert server.stdout is not None
        yield urlsplit(server.stdout.readline().strip()).netloc
        server.send_signal(signal.SIGINT)
        try:
            _, err = server.communicate(timeout=60)
        finally:
            server.kill()
        assert (server.returncode, err) == (130, "")


def request(address: str, method: str, body: bytes | None = None) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request(method, "/", body)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_threaded_app_prints_the_answer(answer: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / "threaded_app.py"), str(ROOT / "models" / "demo")]
    run = subprocess.run(command, env=ENV, capture_output=True, text=True, check=True)
    assert run.stdout == f"{answer}\n[length, 48 tokens]\n"
    assert run.stderr == ""


def test_server_streams_the_answer(address: str, answer: str) -> None:
    assert request(address, "POST", PROMPT.encode()) == (200, answer)


def test_server_names_the_error_of_a_bad_request(address: str) -> None:
    status, body = request(address, "POST", b"")
    assert status == 400
    assert '"code": "invalid_request"' in body


def test_server_goes_on_after_a_client_that_leaves(address: str, answer: str) -> None:
    host, _, port = address.partition(":")
    for _ in range(6):  # more than there are workers: an answer that went on would hold one
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(PROMPT), PROMPT.encode()))
            client.recv(1)
    assert request(address, "POST", PROMPT.encode()) == (200, answer)


class Endless:
    """A session whose answer goes on until it is cancelled, or for five seconds."""

    cancelled = False

    def generate(self, *_: object, **__: object) -> Iterator[SimpleNamespace]:
        end = time.monotonic() + 5
        while not self.cancelled and time.monotonic() < end:
            yield SimpleNamespace(text="x")
            time.sleep(0.001)

    def cancel(self) -> None:
        self.cancelled = True


def test_leaving_the_stream_cancels_the_answer() -> None:
    texts = runpy.run_path(str(ROOT / "examples" / "asyncio_server.py"))["texts"]

    async def leave(session: Endless, workers: ThreadPoolExecutor) -> None:
        stream = texts(session, "p", workers)
        assert await anext(stream) == "x"
        await stream.aclose()

    session = Endless()
    with ThreadPoolExecutor(1) as workers:
        asyncio.run(leave(session, workers))
    assert session.cancelled


def test_other_methods_are_refused(address: str) -> None:
    assert request(address, "GET")[0] == 404
