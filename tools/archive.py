"""The files of the archive that the ComfyUI registry distributes, and its dead links."""

from __future__ import annotations

import posixpath
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r'(?:\]\(|src=")(?!https?:|mailto:|#)([^)#" ]+)')


def names(root: Path = ROOT) -> set[str]:
    """What git tracks, less what .comfyignore leaves out."""
    ignored = _listed(root, "--cached", "--ignored", "--exclude-from=.comfyignore")
    return _listed(root) - ignored


def _listed(root: Path, *options: str) -> set[str]:
    command = ["git", "ls-files", "-z", *options]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True)
    return set(filter(None, listed.stdout.split("\0")))


def dead_links(root: Path, shipped: Iterable[str]) -> list[str]:
    """Relative links of shipped Markdown pages to files that are not shipped, as "page: target"."""
    files = set(shipped)
    folders = {str(parent) for name in files for parent in _parents(name)}
    dead = []
    for page in sorted(name for name in files if name.endswith(".md")):
        for link in _LINK.findall((root / page).read_text("utf-8")):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(link)))
            if target not in files and target not in folders:
                dead.append(f"{page}: {target}")
    return dead


def _parents(name: str) -> list[str]:
    folders = name.split("/")[:-1]
    return ["/".join(folders[:depth]) for depth in range(len(folders) + 1)]
