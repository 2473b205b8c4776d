"""Runs that live on S3: which address belongs to which local folder, and a run fetched back whole.

A run is always made in a local folder (grpo.mirror copies it from there), so nothing but this module and the command
line knows addresses. What is fetched is put in place in one move; a local folder that is older is kept under another
name, never mixed with what came.
"""

from __future__ import annotations

import atexit
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath

from omegaconf import DictConfig, OmegaConf

from grpo import lock
from grpo.faults import ConfigError, Fault
from grpo.s3 import Remote, StorageError, is_remote, join
from grpo.schema import RunConfig

log = logging.getLogger(__name__)

CHECKPOINTS, DONE, RESULT = "checkpoints", "DONE", "result.json"
FETCHED_AT_ONCE = 8


def address_of(run: RunConfig, folder: Path) -> str | None:
    """Where the run in `folder` is copied to; None for a run that stays where it is.

    A run resumed from an address goes on there. Below scratch_dir a folder has the same place below output_dir; one
    that was put elsewhere goes by its name, a trial (whose sweep is known by its record) also by its sweep's.
    """
    if run.resume is not None and is_remote(run.resume):
        return run.resume.rstrip("/")
    if not is_remote(run.runtime.output_dir):
        return None
    scratch = Path(run.runtime.scratch_dir).expanduser().resolve()
    if folder.is_relative_to(scratch / run.name):
        return join(run.runtime.output_dir, *folder.relative_to(scratch).parts)
    sweep = next((parent for parent in folder.parents if (parent / "sweep.json").is_file()), folder)
    return join(run.runtime.output_dir, run.name, *folder.relative_to(sweep.parent).parts)


def local_folder(place: str, run: RunConfig) -> Path:
    """Where a run that belongs at `place`, a folder or an address, is made."""
    return (
        _local_folder(place, run.runtime.output_dir, run.runtime.scratch_dir)
        if is_remote(place)
        else Path(place).expanduser().resolve()
    )


def _local_folder(address: str, output_dir: str, scratch_dir: str) -> Path:
    home = f"{output_dir.rstrip('/')}/"
    # Where a run was moved to another bucket, its last two parts still are <name>/<stamp>.
    below = address.removeprefix(home) if address.startswith(home) else "/".join(address.rstrip("/").split("/")[-2:])
    return Path(scratch_dir, below.rstrip("/")).expanduser().resolve()


def refuse_unusable(run: RunConfig, folder: Path, *, known: bool) -> None:
    """Raises ConfigError if the run's address cannot be written to, or (unless `known`) holds a run already."""
    address = address_of(run, folder)
    if address is None:
        return
    with refusal("resume" if is_remote(run.resume) else "runtime.output_dir"):
        # More patient than in the run, where another try costs nothing.
        remote = Remote(address, attempts=5)
        remote.check()
        if not known and "config.yaml" in remote.names("config.yaml"):
            raise StorageError(f"{address} holds a run already; resume={address} continues it", "denied")


@contextmanager
def refusal(key: str) -> Iterator[None]:
    """Says a StorageError as a fault of `key`."""
    try:
        yield
    except StorageError as error:
        raise ConfigError([Fault(key=key, problem=f"{error}; nothing was started")]) from error


@cache
def saved_config(address: str) -> Path:
    """What decides whether a run may go on, in a folder that is gone when the program ends. Raises StorageError."""
    folder = Path(tempfile.mkdtemp(prefix="run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    remote = Remote(address)
    remote.download("config.yaml", folder / "config.yaml")
    there = remote.names()
    for name in ("run.json", RESULT):
        if name in there:
            remote.download(name, folder / name)
    return folder


def bring_up_to_date(run: RunConfig, folder: Path) -> None:
    """Before a run is resumed: put what S3 has in the folder's place, if that is newer. Raises ConfigError."""
    address = address_of(run, folder)
    if address is not None:
        with refusal("resume"):
            # A run that died early may have left nothing there.
            if is_remote(run.resume) or "config.yaml" in Remote(address).names("config.yaml"):
                local_copy(address, folder)


def local_copy(address: str, folder: Path | None = None) -> Path:
    """The run at `address` as a local folder with its newest whole checkpoint; fetched, unless one as new is there.

    Where none is named, the folder is the one in which the run's own config would have made it. A path is given back
    as it is. Raises StorageError, and ConfigError where a process is at work in the folder that is to be replaced.
    """
    if not is_remote(address):
        return Path(address)
    remote = Remote(address)
    folder = folder or _own_folder(remote)
    objects = remote.names()
    if not objects:
        raise StorageError(f"there is nothing at {remote.address}", "missing")
    here, there = _progress_here(folder), _progress(objects)
    if (folder / "config.yaml").is_file() and here >= there:
        log.warning("%s is as new as %s (%s); it is used as it is", folder, remote.address, _told(here))
        return folder
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    _fetch(remote, objects, part)
    if folder.exists():
        with lock.held(folder):
            pass  # nobody is at work in what is now moved
        kept = next(path for path in _older(folder) if not path.exists())
        folder.rename(kept)
        log.warning("%s was older than %s (%s); kept as %s", folder, remote.address, _told(here), kept.name)
    part.rename(folder)
    return folder


def _own_folder(remote: Remote) -> Path:
    config = OmegaConf.create(remote.read("config.yaml").decode())
    assert isinstance(config, DictConfig)
    return _local_folder(remote.address, config.runtime.output_dir, config.runtime.scratch_dir)


def _older(folder: Path) -> Iterator[Path]:
    number = 1
    while True:
        yield folder.with_name(f"{folder.name}_older_{number}")
        number += 1


Progress = tuple[int, bool]
"""Newest whole checkpoint (-1 for none), and whether the run has ended with a result."""


def _told(progress: Progress) -> str:
    step, ended = progress
    return ("no checkpoint" if step < 0 else f"checkpoint of step {step}") + (", finished" if ended else "")


def complete_steps(names: Mapping[str, int]) -> list[int]:
    """Steps whose checkpoint has its DONE among these names, oldest first."""
    found = (re.fullmatch(rf"{CHECKPOINTS}/step_(\d+)/{DONE}", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def step_folder(step: int) -> str:
    return f"{CHECKPOINTS}/step_{step:06d}"


def _progress(objects: Mapping[str, int]) -> Progress:
    return max(complete_steps(objects), default=-1), RESULT in objects


def _progress_here(folder: Path) -> Progress:
    from grpo.checkpoint import damage

    whole = [path for path in folder.glob(f"{CHECKPOINTS}/step_*") if damage(path) is None]
    return max((int(path.name.removeprefix("step_")) for path in whole), default=-1), (folder / RESULT).is_file()


def _fetch(remote: Remote, objects: Mapping[str, int], target: Path) -> None:
    """Records and the newest checkpoint that arrives as its DONE says; an older one if need be, and then said."""
    records = [name for name in objects if not name.startswith(f"{CHECKPOINTS}/")]
    with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
        list(pool.map(lambda name: remote.download(name, _inside(target, name)), records))
    steps = complete_steps(objects)
    for step in reversed(steps):
        try:
            _fetch_checkpoint(remote, step, target)
            return
        except StorageError as error:
            if error.kind not in ("missing", "damaged"):
                raise
            shutil.rmtree(target / step_folder(step), ignore_errors=True)
            log.warning("checkpoint of step %d is not used: %s", step, error)
    if steps:
        raise StorageError(f"none of the checkpoints at {remote.address} is whole", "damaged")


def _fetch_checkpoint(remote: Remote, step: int, target: Path) -> None:
    folder = step_folder(step)
    done = remote.read(f"{folder}/{DONE}")
    try:
        hashes = {str(name): str(digest) for name, digest in json.loads(done).items()}
    except (ValueError, AttributeError):
        raise StorageError(f"{join(remote.address, folder, DONE)} is not readable", "damaged") from None
    for name, digest in hashes.items():
        remote.download(f"{folder}/{name}", _inside(target, f"{folder}/{name}"), digest)
    (target / folder / DONE).write_bytes(done)


def _inside(target: Path, name: str) -> Path:
    """A name from S3 as a path; never one that leads out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise StorageError(f"{name!r} is no name of a file of a run", "damaged")
    return target / path
