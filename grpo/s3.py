"""The objects below one s3:// address: write, read, list, delete, each fault as a sentence without a secret.

Endpoint, region and credentials are found boto3's standard ways (AWS_ENDPOINT_URL, profiles, roles). boto3 is imported
by the first address, because a local run should start without it. What arrives is compared with its SHA-256 on both
ways: by S3 when a file is written, by us when it is read.
"""

from __future__ import annotations

import base64
import hashlib
import io
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from grpo import redact

REMOTE = "s3://"
MULTIPART_BYTES = 32 * 2**20
"""Larger files go in parts; an upload that breaks off in between is aborted by boto3, or when the run starts again."""
TRIES = 6
"""For one file that is fetched, before the fetch is given up; on top of boto3's own."""
_DENIED = {"403", "AccessDenied", "AllAccessDisabled", "ExpiredToken", "Forbidden", "InvalidAccessKeyId"} | {
    "InvalidToken",
    "SignatureDoesNotMatch",
}
_MISSING = {"404", "NoSuchBucket", "NoSuchKey", "NotFound"}

_SIGNED = re.compile(r"(://[^\s?]*)\?[^\s'\"]+")
"""An address with the query that signs it."""

Kind = Literal["missing", "denied", "unreachable", "damaged"]


class StorageError(RuntimeError):
    """S3 did not do what was asked. The text holds no secret."""

    def __init__(self, text: str, kind: Kind) -> None:
        super().__init__(redact.hide_in_code(_SIGNED.sub(rf"\1?{redact.HIDDEN}", text)))
        self.kind: Kind = kind


def is_remote(place: str | None) -> bool:
    return place is not None and place.startswith(REMOTE)


def join(address: str, *names: str) -> str:
    return "/".join((address.rstrip("/"), *names))


def pause(failures: int, longest: float) -> float:
    """Seconds to wait after so many failures in a row: doubling, with jitter so that trials do not knock together."""
    return min(longest, 0.5 * 2 ** min(failures, 16)) * random.uniform(0.5, 1.0)


class Remote:
    """Names are relative to the address. Every method raises StorageError."""

    def __init__(self, address: str, *, attempts: int = 3) -> None:
        self.address = address.rstrip("/")
        self.bucket, _, prefix = self.address.removeprefix(REMOTE).partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        with _in_words(f"no S3 client for {self.address}"):
            import boto3
            from botocore.config import Config

            retries: Any = {"mode": "standard", "total_max_attempts": attempts}
            self._s3: Any = boto3.Session().client(
                "s3", config=Config(connect_timeout=5, read_timeout=30, retries=retries)
            )
        self.endpoint: str = self._s3.meta.endpoint_url

    def check(self) -> None:
        """Whether the bucket is there, and whether we may write, read and delete in it."""
        with _in_words(f"bucket {self.bucket} at {self.endpoint}"):
            self._s3.head_bucket(Bucket=self.bucket)
        probe = f".probe-{random.getrandbits(64):x}"
        self.put_bytes(probe, b"whether this place can be written to\n")
        self.read(probe)
        self.delete([probe])

    def names(self, below: str = "") -> dict[str, int]:
        """{name: bytes} of every object whose name starts with `below`."""
        found: dict[str, int] = {}
        with _in_words(f"listing {join(self.address, below)}"):
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._prefix + below)
            for page in pages:
                for item in page.get("Contents", ()):
                    found[item["Key"].removeprefix(self._prefix)] = item["Size"]
        return found

    def put(self, name: str, content: BinaryIO, sha256: str) -> None:
        """Write all of `content`, which must have that hash (hexadecimal)."""
        size = content.seek(0, io.SEEK_END)
        content.seek(0)
        place: dict[str, Any] = {"Bucket": self.bucket, "Key": self._prefix + name}
        with _in_words(f"writing {join(self.address, name)}"):
            if size < MULTIPART_BYTES:
                digest = base64.b64encode(bytes.fromhex(sha256)).decode()
                self._s3.put_object(**place, Body=content, ChecksumSHA256=digest, Metadata={"sha256": sha256})
                return
            from boto3.s3.transfer import TransferConfig

            # Without threads: those of a pool would hold up the end of the program while S3 hangs.
            parts = TransferConfig(
                multipart_threshold=MULTIPART_BYTES, multipart_chunksize=MULTIPART_BYTES, use_threads=False
            )
            extra = {"ChecksumAlgorithm": "SHA256", "Metadata": {"sha256": sha256}}
            self._s3.upload_fileobj(content, **place, ExtraArgs=extra, Config=parts)

    def put_bytes(self, name: str, content: bytes) -> None:
        self.put(name, io.BytesIO(content), hashlib.sha256(content).hexdigest())

    def read(self, name: str) -> bytes:
        """A small object."""
        content = io.BytesIO()
        self._fetch(name, content, None)
        return content.getvalue()

    def download(self, name: str, target: Path, sha256: str | None = None) -> None:
        """Into a file, compared with `sha256` or else the hash noted at the object; fetched again if it differs."""
        target.parent.mkdir(parents=True, exist_ok=True)
        for failures in range(TRIES):
            try:
                with target.open("wb") as file:
                    self._fetch(name, file, sha256)
                return
            except StorageError as error:
                if error.kind in ("missing", "denied") or failures == TRIES - 1:
                    raise
                time.sleep(pause(failures, longest=5.0))

    def _fetch(self, name: str, target: BinaryIO, sha256: str | None) -> None:
        digest = hashlib.sha256()
        with _in_words(f"reading {join(self.address, name)}"):
            answer: Mapping[str, Any] = self._s3.get_object(Bucket=self.bucket, Key=self._prefix + name)
            for chunk in answer["Body"].iter_chunks(2**20):
                digest.update(chunk)
                target.write(chunk)
        wanted = sha256 or answer["Metadata"].get("sha256")
        if wanted is not None and digest.hexdigest() != wanted:
            raise StorageError(f"{join(self.address, name)} is not what was written there (its SHA-256)", "damaged")

    def delete(self, names: Iterable[str]) -> None:
        """One after the other, in this order."""
        for name in names:
            with _in_words(f"deleting {join(self.address, name)}"):
                self._s3.delete_object(Bucket=self.bucket, Key=self._prefix + name)

    def abort_leftovers(self) -> None:
        """End uploads in parts that a killed run left open: they cost money and show up in no listing."""
        with _in_words(f"ending unfinished uploads below {self.address}"):
            pages = self._s3.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=self._prefix)
            for upload in [each for page in pages for each in page.get("Uploads", ())]:
                self._s3.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])


@contextmanager
def _in_words(doing: str) -> Iterator[None]:
    """boto3's many errors as StorageError. Their own traces may hold signed addresses, so they are not kept."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        answer = error.response.get("Error", {})
        code = str(answer.get("Code", "?"))
        kind: Kind = "denied" if code in _DENIED else "missing" if code in _MISSING else "unreachable"
        reason = {"denied": "access is denied", "missing": "it does not exist"}.get(kind, "S3 answered")
        raise StorageError(f"{doing}: {reason} ({code}: {answer.get('Message', '')})", kind) from None
    except NoCredentialsError as error:
        raise StorageError(f"{doing}: access is denied ({error})", "denied") from None
    except (BotoCoreError, Boto3Error) as error:
        raise StorageError(f"{doing}: {error} ({type(error).__name__})", "unreachable") from None
