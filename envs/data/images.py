"""Image files of a manifest: checked by their header, identified by their content, opened for the model.

What lies in S3 is identified by its ETag: reading a million objects only to hash them would cost hours.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from envs.data import s3

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Others can be slow, rare or, like EPS, run a program."""

MOST_PIXELS = 2**26
"""Of a file, some 67 million: above it is a decompression bomb, or a picture that should be made smaller first."""

MOST_BYTES = 2**28
"""Of a file, 256 MiB: what so many pixels take without any compression."""

ENDINGS = {"PNG": b"IEND\xaeB`\x82", "JPEG": b"\xff\xd9", "GIF": b";"}
"""What a whole file of these formats ends in."""

MOST_STRETCHED = 200
"""Longer to shorter side; the processors of Qwen's models refuse more."""


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What tells cheaply whether a file is still the one that was looked at."""

    size: int
    version: str
    """Modification time of a file, ETag of an object."""


def stamp(path: str) -> Stamp:
    """Raises OSError."""
    if path.startswith(s3.SCHEME):
        size, version = _listed(path)
    else:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("is no file")  # a pipe would be waited for
        size, version = found.st_size, str(found.st_mtime_ns)
    if size > MOST_BYTES:
        raise OSError(f"has {size:,} bytes; at most {MOST_BYTES:,} are read")
    return Stamp(size=size, version=version)


def identify(path: str) -> bytes:
    """16 bytes that follow from the file's content. Raises OSError or ValueError with the reason, without the path.

    A file that does not end as whole ones do is decoded, to see whether it is cut off; damage inside shows when played.
    """
    if path.startswith(s3.SCHEME):
        size, etag = _listed(path)
        if size == 0:
            raise ValueError("is empty")
        return hashlib.blake2b(f"{size} {etag}".encode(), digest_size=16).digest()
    with open(path, "rb") as file:
        content = file.read()
    with _opened(content) as image:
        if not _ends_well(image.format, content):
            _decode(image)
    return hashlib.blake2b(content, digest_size=16).digest()


@lru_cache(maxsize=64)
def load(path: str, max_pixels: int) -> tuple[np.ndarray, tuple[int, int]]:
    """uint8[height, width, 3], read-only, upright, of at most `max_pixels`; and (width, height) of the file itself.

    What is transparent becomes white. Raises OSError or ValueError with the path. Siblings share one array.
    """
    from PIL import Image

    try:
        local = s3.local_copy(path) if path.startswith(s3.SCHEME) else path
        with open(local, "rb") as file:
            content = file.read()
        with _opened(content) as image:
            _decode(image)
            upright = _upright(image)
            width, height = upright.size
            colours = _rgb(upright)
            if width * height > max_pixels:
                scale = (max_pixels / (width * height)) ** 0.5
                smaller = (max(1, int(width * scale)), max(1, int(height * scale)))
                colours = colours.resize(smaller, Image.Resampling.LANCZOS)
            pixels = np.array(colours)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except OSError as error:
        raise OSError(f"{path}: {error}") from error
    pixels.setflags(write=False)
    return pixels, (width, height)


def _ends_well(format: str, content: bytes) -> bool:
    if format == "WEBP":
        return 8 + int.from_bytes(content[4:8], "little") <= len(content)
    return format in ENDINGS and content.endswith(ENDINGS[format])


def _decode(image: Any) -> None:
    """Raises ValueError."""
    try:
        image.load()
    # Of a damaged file, Pillow's decoders raise whatever they run into: OSError, SyntaxError, struct.error, IndexError…
    except Exception as error:
        raise ValueError(f"cannot be decoded ({error})") from error


def _upright(image: Any) -> Any:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    # Damaged EXIF data make Pillow raise anything, and do not say that the picture lies on its side.
    except Exception:
        return image


def _opened(content: bytes) -> Any:
    """The image of a file's content, header read and size checked. Raises ValueError."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        told = "is too large" if isinstance(error, Image.DecompressionBombError) else "is no image"
        raise ValueError(f"{told} ({', '.join(FORMATS)} of at most {MOST_PIXELS:,} pixels are)") from error
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ValueError(f"is {width} x {height}; at most {MOST_PIXELS:,} pixels are opened")
    if max(width, height) > MOST_STRETCHED * min(width, height):
        raise ValueError(f"is {width} x {height}; no side may be more than {MOST_STRETCHED} times the other")
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        raise ValueError("holds 32-bit numbers, of which nobody says which one is white; save it with 8 or 16 bits")
    return image


def _rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow would cut 16-bit values off at 255 instead of scaling them.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _listed(address: str) -> tuple[int, str]:
    folder = address[: address.rindex("/") + 1]
    found = _listing(folder).get(address)
    if found is None:
        raise FileNotFoundError("there is no such object")
    return found


@lru_cache(maxsize=256)
def _listing(folder: str) -> dict[str, tuple[int, str]]:
    return s3.listing(folder)
