"""A streaming HTTP server on asyncio and the standard library: `python examples/asyncio_server.py [MODEL [PORT]]`.

    curl -N --data 'def main(argv):' http://127.0.0.1:8000/

Every connection gets a session of its own. The model's rounds are pulled on a worker thread and cross into the event
loop by a queue; a client that goes away cancels its answer at the next token.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import qwenmtp
from qwenmtp import Model, QwenMtpError, SamplingParams, Session

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 409: "Conflict", 507: "Insufficient Storage"}


async def texts(session: Session, prompt: str, workers: ThreadPoolExecutor) -> AsyncIterator[str]:
    """The answer as it grows. Closing the iterator cancels the answer and waits until the session is free."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[str | QwenMtpError | None] = asyncio.Queue()
    unwanted = threading.Event()  # said before the worker began, a cancel would find nothing to end

    def pull() -> None:
        end: QwenMtpError | None = None
        try:
            for r in session.generate(prompt, SamplingParams(seed=7), max_tokens=48):
                if unwanted.is_set():
                    session.cancel()
                loop.call_soon_threadsafe(arrived.put_nowait, r.text)
        except QwenMtpError as error:
            end = error
        loop.call_soon_threadsafe(arrived.put_nowait, end)

    pulling = loop.run_in_executor(workers, pull)
    try:
        while isinstance(item := await arrived.get(), str):
            yield item
        if item is not None:
            raise item
    finally:
        unwanted.set()
        session.cancel()
        await pulling


class Server:
    """Answers POST with the text that continues the body."""

    def __init__(self, model: Model, n_workers: int = 4):
        self._model = model
        self._workers = ThreadPoolExecutor(n_workers, thread_name_prefix="answer")

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, prompt = await self._request(reader)
            if method != "POST":
                await self._whole(writer, 404, {"error": "POST a prompt to /"})
                return
            await self._answer(writer, prompt)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone; texts() has cancelled its answer
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, prompt: str) -> None:
        answer = texts(self._model.session(), prompt, self._workers)
        started = False
        try:
            async for text in answer:
                if not started:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n")
                    writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
                    started = True
                if raw := text.encode():
                    writer.write(b"%x\r\n%b\r\n" % (len(raw), raw))
                    await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        except QwenMtpError as error:
            if started:  # a broken chunk stream tells the client that the answer is not whole
                writer.transport.abort()
            else:
                await self._whole(writer, error.http_hint or 500, {"error": error.to_json()})
        finally:
            await answer.aclose()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, str]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        return head[0].split()[0], body.decode(errors="replace")

    async def _whole(self, writer: asyncio.StreamWriter, status: int, report: object) -> None:
        raw = json.dumps(report).encode()
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\nContent-Length: {len(raw)}\r\n\r\n"
        writer.write(head.encode() + raw)
        await writer.drain()

    def close(self) -> None:
        """Wait for the workers."""
        self._workers.shutdown()


async def serve(model: Model, port: int) -> None:
    """Serve until cancelled; port 0 takes a free one. Prints the address."""
    server = Server(model)
    try:
        async with await asyncio.start_server(server, "127.0.0.1", port) as listener:
            print("http://{}:{}/".format(*listener.sockets[0].getsockname()), flush=True)
            await listener.serve_forever()
    finally:
        server.close()


def main() -> None:
    with qwenmtp.load(sys.argv[1] if len(sys.argv) > 1 else "models/demo") as model:
        asyncio.run(serve(model, int(sys.argv[2]) if len(sys.argv) > 2 else 8000))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
