"""Weights & Biases, at arm's length: every wandb call happens in one background thread, and none may fail the run.

wandb's own clock (`_step`) drops what arrives out of order, as after a resume, so our step travels as an ordinary
metric that all others are plotted against. When the service cannot be reached the same thread records offline.
"""

from __future__ import annotations

import logging
import netrc
import os
import queue
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from grpo.files import write_text
from grpo.interfaces import Tracker
from grpo.redact import redact

if TYPE_CHECKING:
    import wandb

log = logging.getLogger(__name__)

INIT_SECONDS = 20
UPLOAD_SECONDS = 30
"""How long the end of a run may wait for uploads; what is left stays on disk, for `wandb sync`."""
FINISH_SECONDS = INIT_SECONDS + UPLOAD_SECONDS
QUEUE_LENGTH = 10_000
"""Calls kept for a wandb that does not answer; beyond that they are dropped and counted."""
SESSION_STRIDE = 1_000_000
"""Where an offline session starts wandb's own clock, times the sessions before it, so that no two sessions overlap."""

Mode = Literal["auto", "online", "offline"]
Call = Callable[["wandb.Run"], None]


class WandbTracker(Tracker):
    def __init__(self, *, project: str, entity: str | None, mode: Mode) -> None:
        self.faults = 0
        """Failures so far: of calls, of connecting, of queueing. The first is logged when it happens."""
        self._project = project
        self._entity = entity
        self._mode: Mode = mode
        self._folder = Path()
        self._calls: queue.Queue[Call | None] = queue.Queue(QUEUE_LENGTH)
        self._exit_code = 0
        self._offline_folder: str | None = None
        self._thread: threading.Thread | None = None

    def start(self, *, folder: str, name: str, config: Mapping[str, Any]) -> None:
        """Returns at once; wandb is imported and connected in the background."""
        self._folder = Path(folder)
        self._thread = threading.Thread(target=self._work, args=(name, redact(config)), daemon=True, name="wandb")
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {**metrics, "step": step}
        self._enqueue(lambda run: run.log(row))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._enqueue(lambda run: run.log({"rollouts": _table(self._folder, rows), "step": step}))

    def finish(self, exit_code: int) -> None:
        """Waits for uploads, `FINISH_SECONDS` at most, and says how to send what was recorded offline."""
        if self._thread is None:
            return
        self._exit_code = exit_code
        self._enqueue(None)
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            self._fault("finishing", TimeoutError(f"not done after {FINISH_SECONDS} s"))
        if self.faults > 1:
            log.warning("wandb failed %d times; metrics.jsonl and rollouts.jsonl are complete", self.faults)
        if self._offline_folder is not None:
            log.info("wandb recorded offline; to upload: wandb sync %s", self._offline_folder)

    def _enqueue(self, call: Call | None) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full as error:
            self._fault("queueing a call", error)

    def _fault(self, doing: str, error: Exception) -> None:
        self.faults += 1
        if self.faults == 1:
            log.warning("wandb failed at %s; training goes on (%s: %s)", doing, type(error).__name__, error)

    def _work(self, name: str, config: Mapping[str, Any]) -> None:
        # The boundary to code that may fail in any way (network, key, disk, a changed API) and that the run must
        # survive. Below it is only copying: what it copies was checked and written before it got here.
        try:
            run = self._open(name, config)
        except Exception as error:
            self._fault("starting", error)
            return
        while (call := self._calls.get()) is not None:
            try:
                call(run)
            except Exception as error:
                self._fault("logging", error)
        try:
            run.finish(self._exit_code)
            _stop_service()
        except Exception as error:
            self._fault("finishing", error)

    def _open(self, name: str, config: Mapping[str, Any]) -> wandb.Run:
        # Before the slow import: the first checkpoint takes it along.
        _run_id(self._folder)
        # wandb's reports about itself go to the same server and hold up the end of the process when it hangs.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Tables wait here for their upload; in the home folder they would be parted from the run that they belong to.
        os.environ["WANDB_DATA_DIR"] = str(self._folder.absolute() / "wandb" / "data")
        import wandb

        settings = wandb.setup(wandb.Settings(silent=True)).settings
        online = self._mode != "offline" and key_present(settings.base_url)
        if self._mode == "online" and not online:
            self._fault(
                "starting", RuntimeError("mode=online, but no WANDB_API_KEY and no netrc entry; run `wandb login`")
            )
        if online:
            try:
                return self._init("online", name, config)
            except Exception as error:
                self._fault("connecting, so it records offline", error)
                _stop_service()
                wandb.setup(wandb.Settings(silent=True))
        sessions = sum(1 for _ in self._folder.glob("wandb/*run-*-*"))
        run = self._init("offline", name, config)
        self._offline_folder = str(Path(run.dir).parent)
        # Only sets the clock, which must not run into an earlier session's when both are synced.
        run.log({}, step=sessions * SESSION_STRIDE)
        return run

    def _init(self, mode: Literal["online", "offline"], name: str, config: Mapping[str, Any]) -> wandb.Run:
        import wandb

        run = wandb.init(
            project=self._project,
            entity=self._entity,
            name=name,
            config=dict(config),
            dir=str(self._folder),
            id=_run_id(self._folder),
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                init_timeout=INIT_SECONDS,
                login_timeout=INIT_SECONDS,
                finish_timeout=UPLOAD_SECONDS,
                silent=True,
                console="off",
                # run.json is the provenance; wandb's own would repeat the command line, secrets included.
                disable_git=True,
                disable_code=True,
                save_code=False,
                x_disable_meta=True,
                x_save_requirements=False,
            ),
        )
        run.define_metric("*", step_metric="step")
        return run


def _stop_service() -> None:
    """Only its end frees the run's id and puts the last block of a .wandb file on disk; `finish` does neither."""
    import wandb

    wandb.teardown()


def key_present(base_url: str) -> bool:
    """Whether wandb would find a key for its server; the key itself is not kept. An unreadable netrc holds none."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    candidates = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for path in map(os.path.expanduser, candidates):
        try:
            if netrc.netrc(path).authenticators(urlsplit(base_url).netloc):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _run_id(folder: Path) -> str:
    """The same for every session of a run folder, so that a resumed run continues its curve."""
    path = folder / "wandb" / "run_id"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_text(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8")


def _table(folder: Path, rows: Sequence[Mapping[str, Any]]) -> wandb.Table:
    """One line a turn. Columns follow the rows: a term each, and as many images as the turn with the most has."""
    import wandb

    terms = sorted({name for row in rows for name in row["terms"]})
    width = max((len(turn["images"]) for row in rows for turn in row["turns"]), default=0)
    episode_columns = ["step", "split", "task", "sample", "solved", "stop", "total", "advantage"]
    turn_columns = ["text", "reply", "action", "feedback"]
    image_columns = [f"image {index + 1}" for index in range(width)]
    table = wandb.Table(columns=[*episode_columns, *terms, "turn", *image_columns, *turn_columns])
    for row in rows:
        episode = [row[column] for column in episode_columns] + [row["terms"].get(term) for term in terms]
        for number, turn in enumerate(row["turns"], start=1):
            images = [wandb.Image(str(folder / path)) for path in turn["images"]]
            padding = [None] * (width - len(images))
            table.add_data(*episode, number, *images, *padding, *(turn[column] for column in turn_columns))
    return table
