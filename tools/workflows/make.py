"""Makes every workflow file, the subgraph blueprints, and the workflows' thumbnails, from the code
beside it.

python -P tools/workflows/make.py                    write the workflows (starts a ComfyUI to ask it
for its nodes) python -P tools/workflows/make.py --url http://...   the same with a ComfyUI that is
running python -P tools/workflows/make.py --check            write nothing, fail when a file differs
from what is described python -P tools/workflows/make.py --thumbnails DIR   write the .jpg beside
each workflow: from the demo's images in
                                               DIR (`python run.py demo --all --out DIR`), or its
                                               graph
python -P tools/workflows/make.py --help-images DIR
                                               write the images of the help pages from the same
python -P tools/workflows/make.py --animation        write docs/images/sliders.webp of the README
(needs Chromium)
"""

from __future__ import annotations

import argparse
import contextlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.launcher.api import Client

ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    load_package = runpy.run_path(str(ROOT / "run.py"))["load_package"]
    load_package("tools")
    from tools.launcher.errors import LaunchError

    options = _options(argv)
    try:
        if options.animation:
            return _animation(options.url)
        if options.thumbnails:
            return _thumbnails(options.thumbnails)
        if options.help_images:
            return _help_images(options.help_images)
        with _running(options.url) as running:
            object_info = running.object_info()
        return _workflows(object_info, options.check)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return 1


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the workflow files of the pack.")
    parser.add_argument("--url", help="a running ComfyUI with the pack; without it, one is started")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, fail when a file differs"
    )
    parser.add_argument(
        "--thumbnails", type=Path, metavar="DIR", help="make the thumbnails from the images in DIR"
    )
    parser.add_argument(
        "--help-images", type=Path, metavar="DIR", help="make the help pages' images from DIR"
    )
    parser.add_argument("--animation", action="store_true", help="make the README's animation")
    return parser.parse_args(argv)


@contextlib.contextmanager
def _running(url: str | None) -> Iterator[Client]:
    """The API of the ComfyUI at ``url``, or of one that is started."""
    from tools.launcher import comfyui, server
    from tools.launcher.api import Client

    if url:
        yield Client(url)
        return
    with server.Server(comfyui.locate(), comfyui.prepare_base()) as started:
        yield Client(started.url)


def _workflows(object_info: dict, check: bool) -> int:
    from tools.launcher.paths import write_atomically
    from tools.workflows import canvas, described
    from tools.workflows.blueprints import BLUEPRINTS
    from tools.workflows.titles import LIST, listed, path_of

    differing = 0
    files = [(path_of(name), name, describe) for name, describe in described().items()]
    files += [
        (ROOT / "subgraphs" / f"{name}.json", name, blueprint.describe)
        for name, blueprint in BLUEPRINTS.items()
    ]
    texts = {
        path: canvas.to_text(canvas.make(name, describe, object_info))
        for path, name, describe in files
    }
    for path, text in {**texts, LIST: listed(described())}.items():
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        differing += 1
        if not check:
            write_atomically(path, text)
        print(f"{path.name} {'differs' if check else 'written'}")
    return int(check and differing > 0)


def _thumbnails(images: Path) -> int:
    from tools.workflows import thumbnails
    from tools.workflows.titles import ILLUSTRATED, TITLES

    for name in (*TITLES, *ILLUSTRATED):
        print(f"{thumbnails.write(name, images).name} written")
    return 0


def _animation(url: str | None) -> int:
    from tools.workflows import animation

    with _running(url) as running:
        print(f"{animation.write(running.url).name} written")
    return 0


def _help_images(generated: Path) -> int:
    from tools.workflows import help_images

    for name in help_images.IMAGES:
        print(f"{help_images.write(name, generated).name} written")
    print(f"{help_images.write_positions().name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
