"""Makes every workflow file of this folder, and their thumbnails, from the code beside it.

python -P workflows/make.py                    write the workflows (starts a ComfyUI to ask it for its nodes)
python -P workflows/make.py --url http://...   the same with a ComfyUI that is running
python -P workflows/make.py --check            write nothing, fail when a file differs from what is described
python -P workflows/make.py --thumbnails DIR   write the .jpg beside each demo workflow from the demo's pictures
                                               in DIR (`python run.py demo --out DIR` makes them)
python -P workflows/make.py --help-pictures DIR
                                               write the pictures of the help pages from the same
"""

import argparse
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    load_package = runpy.run_path(str(ROOT / "run.py"))["load_package"]
    for name in ("launch", "workflows"):
        load_package(name)
    from launch.errors import LaunchError

    options = _options(argv)
    try:
        if options.thumbnails:
            return _thumbnails(options.thumbnails)
        if options.help_pictures:
            return _help_pictures(options.help_pictures)
        return _workflows(_object_info(options.url), options.check)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return 1


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the workflow files of the pack.")
    parser.add_argument("--url", help="a running ComfyUI with the pack; without it, one is started")
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file differs")
    parser.add_argument("--thumbnails", type=Path, metavar="DIR", help="make the thumbnails from the pictures in DIR")
    parser.add_argument("--help-pictures", type=Path, metavar="DIR", help="make the help pages' pictures from DIR")
    return parser.parse_args(argv)


def _object_info(url: str | None) -> dict:
    from launch import comfyui, server
    from launch.api import Client

    if url:
        return Client(url).object_info()
    with server.Server(comfyui.locate(), comfyui.prepare_base()) as running:
        return Client(running.url).object_info()


def _workflows(object_info: dict, check: bool) -> int:
    from launch.paths import write_atomically
    from workflows import FOLDER, canvas, described

    differing = 0
    for name, describe in described().items():
        path = FOLDER / f"{name}.json"
        text = canvas.to_text(canvas.make(name, describe, object_info))
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        differing += 1
        if not check:
            write_atomically(path, text)
        print(f"{path.name} {'differs' if check else 'written'}")
    return int(check and differing > 0)


def _thumbnails(pictures: Path) -> int:
    from workflows import FOLDER, thumbnails

    for path in sorted(FOLDER.glob("demo_*.json")):
        target = thumbnails.write(path.stem, pictures)
        print(f"{target.name} written")
    return 0


def _help_pictures(painted: Path) -> int:
    from workflows import help_pictures

    for name in help_pictures.PICTURES:
        print(f"{help_pictures.write(name, painted).name} written")
    print(f"{help_pictures.write_positions().name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
