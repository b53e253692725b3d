"""Write a file whole or not at all, let one process at a time work on a file, and read text that a
person gave.

What distinguishes a file from another that had its name: a stamp in memory, a digest of its bytes
on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_STALE_SECONDS = 24 * 3600
_ENDS = 2**20  # bytes of a file's beginning and end in its digest
# stretches, bytes
_SAMPLES = 64
_SAMPLE = 2**12
_TEMPORARY = re.compile(r".+\.[0-9a-f]{8}\.part")


class WriteError(OSError):
    """A file that cannot be written; the message is one sentence with its name."""


class BusyError(RuntimeError):
    """A file that another process is working on; the message is one sentence with its name."""


@contextlib.contextmanager
def atomic_write(path: Path, check: Callable[[Path], object] | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` to write to; when the block ends well it replaces
    ``path``.

    The temporary name is unique, so two writers never share one and the last whole file stays. The
    file is flushed to the disk, then ``check`` reads it (it raises for a file that is not as it
    should be), then it is renamed. Whatever fails, ``path`` stays as it was and the temporary file
    is removed. The folder is made. What a killed process left in the folder is removed after a day.
    Raises WriteError where the disk is full or the folder is read-only.
    """
    temporary = path.with_name(f"{path.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with named_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path.parent)
            yield temporary
            with open(temporary, "r+b") as file:
                os.fsync(file.fileno())
            if check is not None:
                check(temporary)
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def named_write_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system while ``path`` is written into a WriteError; others
    pass.
    """
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        reason = _write_failure(error)
        if reason is None:
            raise
        raise WriteError(
            f"{path.name} cannot be written to {path.parent} ({reason}): free space, allow writing "
            "there, or choose another place."
        ) from error


@contextlib.contextmanager
def file_lock(path: Path, seconds: float = 0.0) -> Iterator[None]:
    """Hold the one lock of ``path``, against other processes and within this one; raises BusyError
    after ``seconds``.

    The operating system frees the lock of a process that has ended, however it ended. The empty
    file beside ``path`` that carries the lock (``.NAME.lock``) may stay and means nothing by
    itself. Raises WriteError as ``atomic_write``.
    """
    import filelock

    lock = filelock.FileLock(path.with_name(f".{path.name[:100]}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=seconds)
    except filelock.Timeout:
        raise BusyError(
            f"{path.name} is being written by another run or another ComfyUI: wait until that is "
            "done, or choose another name."
        ) from None
    except OSError as error:
        raise WriteError(
            f"{path.name} cannot be written to {path.parent} ({error.strerror}): allow it."
        ) from error
    try:
        yield
    finally:
        lock.release()


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark; raises ValueError with its name where it is no
    UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path.name} cannot be read as UTF-8 text ({error}): save it as such."
        ) from None


def file_stamp(path: Path) -> str:
    """A value that changes when a file is written or replaced; "absent" when it is not there.

    LoRAs of one rank have one size, and archives and copying tools set the time of writing. The
    time of the last change of the file's entry (on Windows: of its creation) and its number on the
    disk cannot be set.
    """
    try:
        about = path.stat()
    except OSError:
        return "absent"
    return f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"


def sampled_digest(path: Path) -> str:
    """64 hexadecimal digits of a file's size, first and last MiB, and 64 stretches of 4 KiB evenly
    spread between.

    The same on every machine and after copying. Raises OSError where the file cannot be read.
    """
    state = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        state.update(size.to_bytes(8, "little"))
        last = max(size - _ENDS, 0)
        stretches = [(0, _ENDS), (last, _ENDS)]
        for number in range(_SAMPLES):
            stretches.append((_ENDS + number * max(last - _ENDS, 0) // _SAMPLES, _SAMPLE))
        for start, length in stretches:
            file.seek(start)
            state.update(file.read(length))
    return state.hexdigest()


def _write_failure(error: Exception) -> str | None:
    """Why the operating system refused to write, also as safetensors reports it; None for any other
    error.
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    code = (
        re.search(r"\(os error (\d+)\)", str(error))
        if type(error).__name__ == "SafetensorError"
        else None
    )
    return os.strerror(int(code[1])) if code else None


def _remove_stale(folder: Path) -> None:
    for other in folder.iterdir():
        if _TEMPORARY.fullmatch(other.name):
            with contextlib.suppress(OSError):
                if time.time() - other.stat().st_mtime > _STALE_SECONDS:
                    other.unlink()
