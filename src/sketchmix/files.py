"""Files that are whole, or not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file of which, whatever happens meanwhile, a reader finds all or what was there before."""
    with opened_atomically(path) as file:
        file.write(data)


@contextmanager
def opened_atomically(path: Path) -> Iterator[BinaryIO]:
    """The same for what is written little by little: the file has its name once the context ends well."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder; make it first", str(path.parent))
    unfinished = path.with_name(f".{uuid4().hex}.unfinished")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the disk know the names in a folder, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
