"""`run.py demo`: every demo workflow through a real ComfyUI, with its images, a table and a contact
sheet.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import paths, screenshots, serve, sheet, workflow
from .api import Client, ConnectionLostError, Progress, output_files
from .comfyui import newest_front_end
from .console import Durations, ProgressLine, duration, table
from .errors import LaunchError
from .server import Server

_SHEET, _SCREENSHOTS = "contact_sheet.png", "screenshots"
_UNTITLED = ("Save Image", "Preview Image", "SaveAnimatedWEBP")
_LISTED = 2  # so many file names fit into a line of the table
_FIRST = 10  # the templates that show what the pack does, 01 to 10
_IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".gif"}


@dataclass(frozen=True)
class Result:
    """What one workflow made: seconds, files per node, and the sentence that says why it failed, if
    it did.
    """

    name: str
    seconds: float
    batches: tuple[sheet.Batch, ...] = ()
    failure: str | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of all nodes."""
        return tuple(file for batch in self.batches for file in batch.files)


def run(
    comfyui: Path,
    only: str | None,
    everything: bool,
    out: Path,
    port: int | None,
    keep_open: bool,
    with_screenshots: bool = False,
    newest: bool = False,
    canvas: Callable[[str, int], dict] = lambda renderer, number: {},
) -> int:
    """Run the demo workflows, save what they make in `out`, and return 1 if one of them failed.

    `everything`: all of them, not the first ten alone.

    `with_screenshots` also saves a screenshot of every workflow, or of the chosen one, on a canvas
    with the settings that `canvas` gives for a renderer and the workflow's number; `newest`: of the
    newest front end that is tested.
    """
    chosen = choose(only, everything)
    durations = Durations(paths.DURATIONS)
    _announce(chosen, durations, everything or only is not None)
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        camera = (
            stack.enter_context(screenshots.Camera(out / _SCREENSHOTS, canvas))
            if with_screenshots
            else None
        )
        print("Starting ComfyUI (about 20 s) ...", flush=True)
        arguments = serve.CANVAS_ARGUMENTS
        if camera:  # whose settings of the front end are not the user's
            arguments += ("--user-directory", stack.enter_context(tempfile.TemporaryDirectory()))
        if newest:
            arguments += ("--front-end-root", str(newest_front_end()))
        server = stack.enter_context(Server(comfyui, paths.HOST, arguments, port))
        client = Client(server.url)
        object_info = client.object_info()
        results = []
        for name, path in chosen.items():
            try:
                results.append(_run_one(client, object_info, name, path, out))
                if results[-1].failure is None:
                    durations.keep(_key(path), results[-1].seconds)
            except ConnectionLostError as error:
                raise LaunchError(
                    f"ComfyUI ended while running {name}: see {server.log}."
                ) from error
            if camera:
                camera.take(server.url, name, path, run=results[-1].failure is None)
        _report(results, out)
        if camera:
            left = {} if only else workflow.own(workflow.Kind.CHECKPOINT, further=everything)
            _finish(camera, server.url, left)
        if keep_open:
            serve.stay_open(server)
    return int(any(result.failure for result in results))


def _finish(camera: screenshots.Camera, url: str, left: dict[str, Path]) -> None:
    """Take the workflows for checkpoints, too, which are not run, and make the sheet of all
    screenshots.
    """
    for name, path in left.items():
        camera.take(url, name, path, run=False)
    target = camera.out.with_suffix(".png")
    sheet.write(camera.taken, target)
    print(f"Screenshots are in {camera.out}, all of them on one page: {target}", flush=True)


def choose(only: str | None, everything: bool = False) -> dict[str, Path]:
    """The first ten demo workflows or all, in their order, or the one with the name or title.

    Raises LaunchError when there is none.
    """
    known = workflow.own(workflow.Kind.DEMO, further=everything or only is not None)
    if not known:
        folder = paths.WORKFLOWS
        raise LaunchError(
            f"There is no demo workflow in {folder}: the copy of the pack is incomplete, get it "
            "again."
        )
    if only is None:
        return known if everything else dict(itertools.islice(known.items(), _FIRST))
    name = only.removesuffix(".json")
    for known_name, path in known.items():
        if name in (known_name, known_name.removeprefix(f"{workflow.Kind.DEMO}_"), path.stem):
            return {known_name: path}
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}."
    raise LaunchError(f"There is no demo workflow named {only}: {hint}")


def _announce(chosen: dict[str, Path], durations: Durations, complete: bool) -> None:
    """Say which workflows run, and how long they took the last time or usually take."""
    count = f"{len(chosen)} workflows" if len(chosen) > 1 else "one workflow"
    others = "" if complete else "; --all runs the others, too"
    print(f"Running {count}{durations.last(*map(_key, chosen.values()))}{others}:", flush=True)
    for path in chosen.values():
        print(f"  {path.stem}{durations.last(_key(path)) or _usual(path)}", flush=True)


def _usual(path: Path) -> str:
    """What a workflow that takes long says of its time."""
    seconds = workflow.seconds_of(workflow.load(path))
    return "" if seconds is None else f" (about {duration(seconds)} on two quiet CPU cores)"


def _key(path: Path) -> str:
    return f"demo {path.stem}"


def _run_one(client: Client, object_info: dict, name: str, path: Path, out: Path) -> Result:
    """Queue one workflow and save its files; a failure ends in the result, only a lost server in an
    exception.
    """
    start = time.monotonic()
    print(f"  {path.stem} ...", flush=True)
    try:
        saved = workflow.load(path)
        prompt = workflow.to_prompt(saved, object_info)
        line = ProgressLine(path.stem, len(prompt))
        batches = _run_prompt(client, prompt, saved, target=out / name, line=line)
        result = Result(name, time.monotonic() - start, batches)
    except ConnectionLostError:
        raise
    except LaunchError as error:
        result = Result(name, time.monotonic() - start, failure=str(error))
    print(f"    {result.failure or duration(result.seconds)}", flush=True)
    return result


def _run_prompt(
    client: Client, prompt: dict, saved: dict, target: Path, line: ProgressLine
) -> tuple[sheet.Batch, ...]:
    """Queue a prompt, show its progress, and save its files beside `target` under names that begin
    with its name.
    """

    def show(progress: Progress) -> None:
        # Nodes that expand into others while running have ids that the prompt does not know.
        label = prompt.get(progress.node, {}).get("_meta", {}).get("title", progress.node)
        line.update(progress.node, label, progress.value, progress.maximum)

    prompt_id = client.queue(prompt, saved)
    try:
        entry = client.wait(prompt_id, show)
    except KeyboardInterrupt:
        client.interrupt()
        raise
    finally:
        line.clear()
    titles = {node: made.get("_meta", {}).get("title", "") for node, made in prompt.items()}
    name, out = target.name, target.parent
    batches = tuple(_save(client, entry, titles, name, out))
    named = {file.name: batch.title for batch in batches for file in batch.files if batch.title}
    if named:
        paths.write_atomically(out / f"{name}_titles.json", json.dumps(named, indent=1).encode())
    return batches


def _save(
    client: Client, entry: dict, titles: dict[str, str], name: str, out: Path
) -> Iterator[sheet.Batch]:
    """Download what each node has made as NAME_1.png, NAME_2.png and so on, in place of what an
    earlier run left.
    """
    for stale in (*out.glob(f"{name}_[0-9]*.*"), *out.glob(f"{name}_titles.json")):
        stale.unlink()
    numbers = itertools.count(1)
    for node, batch in itertools.groupby(output_files(entry), key=lambda file: file.node):
        saved = []
        for file in batch:
            saved.append(out / f"{name}_{next(numbers)}{Path(file.filename).suffix}")
            paths.write_atomically(saved[-1], client.download(file))
        yield sheet.Batch(
            tuple(saved), "" if titles.get(node) in _UNTITLED else titles.get(node, "")
        )


def _report(results: list[Result], out: Path) -> None:
    """Print the table and make the contact sheet."""
    rows = [(result.name, f"{result.seconds:.1f}", _made(result)) for result in results]
    print("\n" + table(("workflow", "seconds", "output files"), rows) + "\n")
    images = [
        (
            result.name.removeprefix("demo_"),
            [batch for batch in map(_images, result.batches) if batch.files],
        )
        for result in results
    ]
    if any(batches for _, batches in images):
        sheet.write(images, out / _SHEET)
        print(f"Images are in {out}, all of them on one page: {out / _SHEET}", flush=True)


def _images(batch: sheet.Batch) -> sheet.Batch:
    return batch._replace(
        files=tuple(file for file in batch.files if file.suffix.lower() in _IMAGES)
    )


def _made(result: Result) -> str:
    if result.failure:
        return f"FAILED: {result.failure}"
    names = [file.name for file in result.files]
    if len(names) > _LISTED:
        return f"{names[0]} to {names[-1]} ({len(names)} files)"
    return ", ".join(names) or "none"
