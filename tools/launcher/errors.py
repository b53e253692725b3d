"""The one exception that ends a command with a sentence instead of a traceback."""

from __future__ import annotations

import errno

_DISK_TROUBLE = {
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.ENOTDIR: "a file is in the way of a folder",
    errno.EEXIST: "a file is in the way of a folder",
}


class LaunchError(Exception):
    """A foreseeable failure; its text is one sentence that says what is wrong and what to do."""


def disk_sentence(error: OSError) -> str | None:
    """The sentence for an operating system error of the disk, or None if the disk is not to blame."""
    trouble = _DISK_TROUBLE.get(error.errno)
    if trouble is None:
        return None
    place = error.filename or "a file"
    return f"Cannot write {place}: {trouble}; make room or move this folder to a disk that you can write to."
