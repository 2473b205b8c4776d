"""A job's output, followed into a file for as long as the job runs, over as many connections as that takes.

Ray sends the whole output again to whoever asks, so the part that is in the file already is skipped. That a stream
ended means nothing: it may end while the job runs, and only the job's status says when there is no more to come.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

from launchers.cluster import Unreachable
from launchers.ray_api import Answer, RayApi, translated

AGAIN_SECONDS = 1.0
LAST_SECONDS = 5.0
"""For a connection to close."""


class LogStream:
    def __init__(self, api: RayApi, job: str, path: Path, changed: threading.Event) -> None:
        self._api, self._job, self._path, self._changed = api, job, path, changed
        self._written = len(path.read_text(encoding="utf-8", errors="replace")) if path.exists() else 0
        self._ending = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"log of {job}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop following."""
        self._ending.set()
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended between the two lines
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._connection())
            self._changed.set()
            if self._ending.wait(AGAIN_SECONDS):
                return

    async def _connection(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            client = await asyncio.to_thread(self._api.client)
        except (Unreachable, Answer):
            return  # the status calls tell of it
        seen = 0
        try:
            async for text in client.tail_job_logs(self._job):
                seen += len(text)
                new = text[max(0, len(text) - (seen - self._written)) :] if seen > self._written else ""
                if new:
                    self._write(new)
        except Exception as error:
            known = translated(error)
            if not isinstance(known, Unreachable | Answer):
                raise
            if not self._ending.is_set():
                self._api.renew(client)

    def _write(self, new: str) -> None:
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(new)
        self._written += len(new)


def complete(api: RayApi, job: str, path: Path) -> None:
    """Write the whole output of a job that has ended, where more of it can be had than is there."""
    text = api.call(lambda client: client.get_job_logs(job))
    there = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if len(text) > len(there):
        path.write_text(text, encoding="utf-8", newline="")
