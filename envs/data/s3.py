"""Local copies of S3 objects, each kept under its address and ETag: a changed object is fetched again.

boto3 is loaded at the first address, and finds credentials, region and endpoint (AWS_ENDPOINT_URL_S3) its usual way.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from envs.data.cache import cache_folder

SCHEME = "s3://"


def split_address(address: str) -> tuple[str, str]:
    """Bucket and key. Raises ValueError."""
    bucket, _, key = address.removeprefix(SCHEME).partition("/")
    if not bucket or not key:
        raise ValueError(f"{address} is no S3 address; write s3://BUCKET/KEY")
    return bucket, key


def local_copy(address: str) -> Path:
    """The object's content as a file, downloaded unless it is here already. Raises OSError with the address."""
    bucket, key = split_address(address)
    try:
        etag = str(_client().head_object(Bucket=bucket, Key=key)["ETag"])
        name = hashlib.sha256(f"{address} {etag}".encode()).hexdigest()
        target = cache_folder("s3") / name[:2] / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=target.parent)
            os.close(handle)
            try:
                _client().download_file(bucket, key, temporary)
                os.replace(temporary, target)
            finally:
                Path(temporary).unlink(missing_ok=True)
    except _failures() as error:
        raise OSError(f"{address} cannot be read: {error}") from error
    return target


def listing(folder: str) -> dict[str, tuple[int, str]]:
    """{address: (bytes, ETag)} of the objects right below an address that ends in a slash. Raises OSError."""
    bucket, prefix = split_address(f"{folder}x")
    prefix = prefix[:-1]
    found = {}
    try:
        for page in _client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/"):
            for item in page.get("Contents", ()):
                found[f"{SCHEME}{bucket}/{item['Key']}"] = (int(item["Size"]), str(item["ETag"]))
    except _failures() as error:
        raise OSError(f"{folder} cannot be listed: {error}") from error
    return found


@cache
def _client() -> Any:
    import boto3

    return boto3.client("s3")


def _failures() -> tuple[type[Exception], ...]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    return Boto3Error, BotoCoreError, ClientError
