"""Where each row of a manifest lies and what it holds, as arrays: a million rows take 40 MB and are looked up at once.

The whole file is checked when it is first seen. What was found is kept in the user's cache under the hash of the
file, and used again for as long as no image has changed, so that the next start reads arrays and nothing else.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from envs.data import images, s3
from envs.data.cache import alone, cache_folder, written_whole
from envs.data.rows import Row, RowError, Shown, read_row, shown
from grpo.interfaces import DataError

log = logging.getLogger(__name__)

FORMAT = 2
"""Counts up when what is kept, or what is checked, changes."""

TOLD = 20
"""Faults that are told one by one; the others are counted."""

ROOT = Path(__file__).resolve().parents[2]

Check = Callable[[Row], None]
"""Raises RowError for a row that cannot be judged."""


@dataclass(frozen=True, kw_only=True)
class Index:
    """N rows. `rows` may be taken by number or as a range, by any number of processes that see the file."""

    address: str
    file: Path
    folder: str
    """That relative image paths start from."""
    version: str
    """Hash of the manifest and of its images' contents."""
    lines_N: np.ndarray
    """Line numbers, from 1."""
    spans_N2: np.ndarray
    """Where each line begins and ends, in bytes."""
    content_N16: np.ndarray
    """Hashes of what the model is shown: text and images."""

    def __len__(self) -> int:
        return len(self.lines_N)

    def row(self, number: int) -> Row:
        start, end = map(int, self.spans_N2[number])
        with self.file.open("rb") as file:
            file.seek(start)
            return read_row(file.read(end - start))

    def image_paths(self, seen: Shown) -> list[str]:
        return [resolved(path, self.folder) for path in seen.images]


def open_index(address: str, key: str, check: Check, checked_by: str) -> tuple[Index, list[tuple[str, str]]]:
    """The index of a manifest, from the cache or made now. `checked_by` says what `check` does, in few words.

    With it, a fault of `key` for every bad line, bounded to the first `TOLD`; the index then lacks those lines.
    Raises DataError where there is no file to read.
    """
    told: list[tuple[str, str]] = []
    file, folder = _located(address, key)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    name = hashlib.sha256(json.dumps([FORMAT, digest, folder, checked_by]).encode()).hexdigest()
    kept = cache_folder("manifests") / name
    with alone(kept):  # many workers may start at once: one looks, the others wait for what it found
        arrays = _kept(kept)
        if arrays is None:
            scan = _Scan(folder=folder)
            scan.read(file, check)
            arrays, told = scan.finished(key)
            if not told:
                _try_to_keep(arrays, kept, address)
    index = Index(
        address=address,
        file=file,
        folder=folder,
        version=hashlib.sha256(f"{digest} {arrays.images_digest()}".encode()).hexdigest(),
        lines_N=arrays.lines_N,
        spans_N2=arrays.spans_N2,
        content_N16=arrays.content_N16,
    )
    return index, told


def _located(address: str, key: str) -> tuple[Path, str]:
    """The manifest as a local file, and the folder of its images. Raises DataError."""
    try:
        if address.startswith(s3.SCHEME):
            return s3.local_copy(address), address.rpartition("/")[0]
        file = (ROOT / Path(address).expanduser()).resolve()
        if not file.is_file():
            raise FileNotFoundError(f"{file} is no file; relative paths start at {ROOT}")
    except (OSError, ValueError) as error:
        raise DataError([(key, str(error))]) from error
    return file, str(file.parent)


def resolved(path: str, folder: str) -> str:
    return path if path.startswith(("/", s3.SCHEME)) else f"{folder}/{path}"


@dataclass(frozen=True, kw_only=True)
class _Arrays:
    """What is kept of a manifest."""

    lines_N: np.ndarray
    spans_N2: np.ndarray
    content_N16: np.ndarray
    images_M16: np.ndarray
    """Contents of the M distinct images, in the order of their first use."""
    stamps: Sequence[tuple[str, int, str]]
    """Path, size and version of each of them."""

    def images_digest(self) -> str:
        return hashlib.sha256(self.images_M16.tobytes()).hexdigest()


def _try_to_keep(arrays: _Arrays, folder: Path, address: str) -> None:
    try:
        with written_whole(folder) as work:
            for name in ("lines_N", "spans_N2", "content_N16", "images_M16"):
                np.save(work / f"{name}.npy", getattr(arrays, name), allow_pickle=False)
            (work / "stamps.json").write_text(json.dumps(arrays.stamps))
    except OSError as error:
        log.warning("what was found in %s is not kept for the next start: %s", address, error)


def _kept(folder: Path) -> _Arrays | None:
    """What was kept; None if there is nothing, nothing sound, or an image that has changed since."""
    try:
        names = ("lines_N", "spans_N2", "content_N16", "images_M16")
        found = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in names}
        stamps = [(path, size, version) for path, size, version in json.loads((folder / "stamps.json").read_bytes())]
        changed = any(images.stamp(path) != images.Stamp(size=size, version=version) for path, size, version in stamps)
    except (OSError, ValueError):
        return None
    return None if changed else _Arrays(**found, stamps=stamps)


@dataclass(kw_only=True)
class _Scan:
    """The one pass over a manifest. Arrays of C numbers, because a million Python objects a column are too many."""

    folder: str
    lines: array[int] = field(default_factory=lambda: array("q"))
    spans: array[int] = field(default_factory=lambda: array("q"))
    texts: bytearray = field(default_factory=bytearray)
    """16 bytes a row: hash of the text shown."""
    ids: bytearray = field(default_factory=bytearray)
    """16 bytes a row that has an id."""
    id_lines: array[int] = field(default_factory=lambda: array("q"))
    image_of: dict[str, int] = field(default_factory=dict)
    """Resolved path -> its number."""
    first_lines: array[int] = field(default_factory=lambda: array("q"))
    """Of each image, the line that names it first."""
    used: array[int] = field(default_factory=lambda: array("q"))
    """Image numbers, row after row."""
    counts: array[int] = field(default_factory=lambda: array("q"))
    faults: list[tuple[int, str]] = field(default_factory=list)
    """The first `TOLD` of lines, in order."""
    wrong: int = 0

    def read(self, file: Path, check: Check) -> None:
        end = 0
        with file.open("rb") as opened:
            for number, line in enumerate(opened, start=1):
                start, end = end, end + len(line)
                if number == 1 and line.startswith(codecs.BOM_UTF8):
                    start, line = start + len(codecs.BOM_UTF8), line.removeprefix(codecs.BOM_UTF8)
                if line.isspace():
                    continue
                try:
                    row = read_row(line)
                    seen = shown(row)
                    check(row)
                    self.add(number, start, end, row, seen)
                except RowError as error:
                    self.fault(number, str(error))

    def add(self, number: int, start: int, end: int, row: Row, seen: Shown) -> None:
        self.lines.append(number)
        self.spans.extend((start, end))
        self.texts += _hash(seen.asked.encode("utf-8", "surrogatepass"))
        if row.id is not None:
            self.ids += _hash(row.id.encode("utf-8", "surrogatepass"))
            self.id_lines.append(number)
        self.counts.append(len(seen.images))
        for path in seen.images:
            image = self.image_of.setdefault(resolved(path, self.folder), len(self.image_of))
            if image == len(self.first_lines):
                self.first_lines.append(number)
            self.used.append(image)

    def fault(self, number: int, reason: str) -> None:
        self.wrong += 1
        if len(self.faults) < TOLD:
            self.faults.append((number, reason))

    def finished(self, key: str) -> tuple[_Arrays, list[tuple[str, str]]]:
        """What was found, and what was wrong: with lines, images, ids, or rows that are there twice."""
        stamps, contents = self._looked_at_images()
        content = self._contents(contents)
        for first, second in repeats(content):
            self.fault(self.lines[second], f"asks the same as line {self.lines[first]}: same text, same images")
        for first, second in repeats(np.frombuffer(bytes(self.ids), dtype=np.uint8).reshape(-1, 16)):
            self.fault(self.id_lines[second], f"id: is that of line {self.id_lines[first]} as well")
        arrays = _Arrays(
            lines_N=np.array(self.lines, dtype=np.int64),
            spans_N2=np.array(self.spans, dtype=np.int64).reshape(-1, 2),
            content_N16=content,
            images_M16=np.frombuffer(b"".join(contents), dtype=np.uint8).reshape(-1, 16),
            stamps=stamps,
        )
        return arrays, self._told(key)

    def _told(self, key: str) -> list[tuple[str, str]]:
        if not self.lines and not self.wrong:
            return [(key, "holds no rows")]
        told = [(key, f"line {number}: {reason}") for number, reason in sorted(self.faults)]
        if self.wrong > len(told):
            told.append((key, f"and {self.wrong - len(told):,} more; {self.wrong:,} faults in all"))
        return told

    def _looked_at_images(self) -> tuple[list[tuple[str, int, str]], list[bytes]]:
        """Stamp and content of every distinct image; a fault for each that cannot be used."""
        stamps, contents = [], []
        # Reading waits for the disk and hashing frees the interpreter, so threads help.
        with ThreadPoolExecutor(max_workers=min(32, 4 * (os.cpu_count() or 1))) as pool:
            looks = (look for batch in pool.map(_look_at, _batches(self.image_of, 256)) for look in batch)
            for image, (path, look) in enumerate(zip(self.image_of, looks, strict=True)):
                if isinstance(look, str):
                    self.fault(self.first_lines[image], f"images: {path}: {look}")
                    contents.append(_hash(path.encode("utf-8", "surrogatepass")))  # stands in, to compare rows with
                    continue
                stamp, content = look
                stamps.append((path, stamp.size, stamp.version))
                contents.append(content)
        return stamps, contents

    def _contents(self, images_M: Sequence[bytes]) -> np.ndarray:
        texts = bytes(self.texts)
        found, at = bytearray(), 0
        for row, count in enumerate(self.counts):
            text = texts[16 * row : 16 * row + 16]
            shows = [images_M[image] for image in self.used[at : at + count]]
            found += _hash(b"".join((text, *shows))) if count else text
            at += count
        return np.frombuffer(bytes(found), dtype=np.uint8).reshape(-1, 16)


def _look_at(paths: Sequence[str]) -> list[tuple[images.Stamp, bytes] | str]:
    return [_look(path) for path in paths]


def _look(path: str) -> tuple[images.Stamp, bytes] | str:
    try:
        return images.stamp(path), images.identify(path)
    except FileNotFoundError:
        return "there is no such file"
    except (OSError, ValueError) as error:
        return str(error)


def _batches(items: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def repeats(content_N16: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first, later) row of each pair of equal neighbours once rows are sorted by content, then by number."""
    halves = np.ascontiguousarray(content_N16).view(np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    again = np.flatnonzero((halves[order[1:]] == halves[order[:-1]]).all(axis=1))
    yield from zip(order[again].tolist(), order[again + 1].tolist(), strict=True)


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
