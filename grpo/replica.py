"""Brings what S3 holds of a run up to what its folder holds, one call at a time.

One promise holds for S3 at every moment, whatever breaks off: a checkpoint with a DONE is whole, and the records that a
resumed run needs reach at least as far as its step. So records go first and DONE last, and where something is taken
away, DONE is first.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from grpo.s3 import Remote, StorageError, join
from grpo.storage import CHECKPOINTS, DONE, RESULT, complete_steps, step_folder

log = logging.getLogger(__name__)

STATE_FILE = "mirror.json"
RESUMED_FROM = ("config.yaml", "overrides.txt", "run.json", "metrics.jsonl", "rollouts.jsonl")
GROWING = (".jsonl", ".log")
"""Copied up to the last whole line."""
NOT_COPIED = (CHECKPOINTS, "wandb", STATE_FILE)
"""Not as records: checkpoints go their own way, and W&B has its own."""

Signature = tuple[int, int]
"""Bytes of a file, and when it changed last."""


class Replica:
    """Every method raises StorageError where S3 fails; it is then called again."""

    def __init__(self, remote: Remote, folder: Path, *, keep: int) -> None:
        self.left = 0
        """Records still to be copied by the call that is running."""
        self.damaged: dict[int, bytes] = {}
        """Local checkpoints (and their DONE) that are not what their DONE says; they are not copied."""
        self._remote, self._folder, self._keep = remote, folder, keep
        self.started_with = max(self._local(), default=0)
        """Step of the newest checkpoint that this start goes on from."""
        self._tidied = self._looked = self._result_there = False
        self._uploaded: dict[int, bytes] = {}
        self._copied: dict[str, Signature] = {}

    @property
    def safe_steps(self) -> list[int]:
        """Those from which the run can go on with nothing but S3, oldest first."""
        return sorted(self._uploaded)

    def catch_up(self, *, records: bool) -> None:
        """Copy all checkpoints that are not there yet, the newest first, and (with `records`) all else that changed."""
        if not self._looked:
            self._look()
        try:
            if self._result_there and (self._folder / "config.yaml").exists() and not (self._folder / RESULT).exists():
                self._remote.delete([RESULT])  # the run goes on: it was given more steps
                self._result_there = False
            self._checkpoints()
            changed = self._changed() if records else []
            for done, name in enumerate(changed):
                self.left = len(changed) - done
                self._copy(name)
                self._checkpoints()
            self.left = 0
        except StorageError:
            # An answer may be lost after the deed was done: do not go on from what we believe.
            self._looked = False
            raise

    def _look(self) -> None:
        names = self._remote.names()
        if not self._tidied:
            self._tidy(names)
            names = self._remote.names()
            self._tidied = True
        self._uploaded = {step: self._remote.read(f"{step_folder(step)}/{DONE}") for step in complete_steps(names)}
        self._result_there = RESULT in names
        self._looked = True

    def _tidy(self, names: Mapping[str, int]) -> None:
        """Once, at the start: what an earlier start left and this one does not go on from."""
        try:
            self._remote.abort_leftovers()
        except StorageError as error:
            # Not every key may do this, and not every service can.
            log.warning("unfinished uploads of an earlier start may be left: %s", error)
        for step in _steps(names):
            if step > self.started_with:
                log.info("checkpoint of step %d at %s is not used, and taken away", step, self._remote.address)
                self._withdraw(step, names)
        for name, size in names.items():
            # Named by their content, and many.
            if name.startswith("images/") and (signature := _signature(self._folder / name)) and signature[0] == size:
                self._copied[name] = signature

    def local_steps(self) -> set[int]:
        return set(self._local())

    def _local(self) -> dict[int, bytes]:
        """{step: DONE} of the complete checkpoints of the folder."""
        found = {}
        for path in (self._folder / CHECKPOINTS).glob("step_*"):
            if re.fullmatch(r"step_\d+", path.name):
                with suppress(FileNotFoundError):
                    found[int(path.name.removeprefix("step_"))] = (path / DONE).read_bytes()
        return found

    def _checkpoints(self) -> None:
        while waiting := self._waiting():
            for name in RESUMED_FROM:
                if _signature(self._folder / name) not in (None, self._copied.get(name)):
                    self._copy(name)
            step = max(waiting)
            self._checkpoint(step, waiting[step])
            self._prune()

    def _waiting(self) -> dict[int, bytes]:
        """{step: DONE} of the checkpoints that are still to be copied."""
        local = self._local()
        self.damaged = {step: done for step, done in self.damaged.items() if local.get(step) == done}
        return {
            step: done for step, done in local.items() if done not in (self._uploaded.get(step), self.damaged.get(step))
        }

    def _checkpoint(self, step: int, done: bytes) -> None:
        folder = step_folder(step)
        with ExitStack() as stack:
            try:
                hashes: dict[str, str] = dict(json.loads(done))
                # Open, they stay readable while the run prunes the folder.
                files = {
                    name: stack.enter_context((self._folder / folder / name).open("rb")) for name in sorted(hashes)
                }
            except FileNotFoundError as error:
                self._set_aside(step, done, f"{error.filename} is missing")
                return
            except (ValueError, TypeError):
                self._set_aside(step, done, "its DONE is not readable")
                return
            for name, file in files.items():
                if hashlib.file_digest(file, "sha256").hexdigest() != hashes[name]:
                    self._set_aside(step, done, f"{name} is not what its DONE says")
                    return
            if step in self._uploaded:
                # Made again after the run went back: its files must not change under the DONE of the old one.
                del self._uploaded[step]
                self._remote.delete([f"{folder}/{DONE}"])
            for name, file in files.items():
                self._remote.put(f"{folder}/{name}", file, hashes[name])
            self._verify(folder, {name: file.seek(0, io.SEEK_END) for name, file in files.items()})
        self._remote.put_bytes(f"{folder}/{DONE}", done)
        self._uploaded[step] = done

    def _set_aside(self, step: int, done: bytes, reason: str) -> None:
        if self._local().get(step) != done:
            return  # pruned, or made again, while it was read
        self.damaged[step] = done
        log.warning("checkpoint of step %d is damaged here and not copied: %s", step, reason)

    def _verify(self, folder: str, wanted: Mapping[str, int]) -> None:
        """S3 compared the hashes; this is whether all of it is there. Raises StorageError."""
        there = self._remote.names(f"{folder}/")
        wrong = [name for name, size in wanted.items() if there.get(f"{folder}/{name}") != size]
        if wrong:
            raise StorageError(f"{join(self._remote.address, folder)} lacks {', '.join(wrong)}", "unreachable")

    def _prune(self) -> None:
        """Keep as many checkpoints there as the run keeps here, and none that was left half copied."""
        names = self._remote.names(f"{CHECKPOINTS}/")
        wanted = {*complete_steps(names)[-self._keep :], *self._local()}
        for step in _steps(names) - wanted:
            self._withdraw(step, names)

    def _withdraw(self, step: int, names: Iterable[str]) -> None:
        mine = [name for name in names if name.startswith(f"{step_folder(step)}/")]
        self._uploaded.pop(step, None)
        self._remote.delete(sorted(mine, key=lambda name: not name.endswith(f"/{DONE}")))

    def _changed(self) -> list[str]:
        """Records that are not on S3 as they are here; the result, which says that all is there, last."""
        names = []
        for path in self._folder.rglob("*"):
            parts = path.relative_to(self._folder).parts
            passing = path.name.endswith((".tmp", ".part", ".lock")) or any(part.startswith(".") for part in parts)
            if parts[0] not in NOT_COPIED and not passing and path.is_file() and not path.is_symlink():
                name = "/".join(parts)
                if _signature(path) != self._copied.get(name):
                    names.append(name)
        return sorted(names, key=lambda name: (name == RESULT, name))

    def _copy(self, name: str) -> None:
        path = self._folder / name
        before = _signature(path)
        try:
            with _opened(path) as content:
                self._remote.put(name, content, hashlib.file_digest(content, "sha256").hexdigest())
        except FileNotFoundError:
            return
        except StorageError:
            if _signature(path) == before:
                raise
            return  # written to in the meantime, so its hash was wrong; it is still among the changed
        if before is not None:
            self._copied[name] = before


def _opened(path: Path) -> io.BufferedReader | io.BytesIO:
    if path.suffix not in GROWING:
        return path.open("rb")
    content = path.read_bytes()
    return io.BytesIO(content[: content.rfind(b"\n") + 1])


def _signature(path: Path) -> Signature | None:
    """None if the file is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def _steps(names: Iterable[str]) -> set[int]:
    """Of all checkpoints of which anything is there, complete or not."""
    found = (re.match(rf"{CHECKPOINTS}/step_(\d+)/", name) for name in names)
    return {int(match[1]) for match in found if match}
