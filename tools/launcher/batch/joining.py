"""Joins the results of pieces, in the order of the list; what is added up, the families' own merge
functions add up.

Each way reads one result after another, so that a list may be as long as it likes.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import paths, sheet
from .job import Piece
from .store import Store

_PACK = "glassbox_pack"
_SHEET = 60  # images on a sheet
_IMAGES = {".png", ".jpg", ".jpeg", ".webp"}


@dataclass(frozen=True)
class Result:
    """A piece with what it made: its files, by their suffix, and the texts that nodes showed."""

    piece: Piece
    folder: Path
    files: tuple[Path, ...]
    texts: tuple[str, ...]

    def named(self, *suffixes: str) -> list[Path]:
        """The files with one of these suffixes."""
        return [path for path in self.files if path.suffix.lower() in suffixes]


def results(store: Store, todo: Iterable[Piece]) -> Iterator[Result]:
    """The results of the pieces that have one."""
    for piece in todo:
        record = store.read(piece.key)
        if record is not None:
            folder = store.folder(piece.key)
            texts = tuple(text for of_node in record["texts"].values() for text in of_node)
            yield Result(
                piece, folder, tuple(folder / name for name in sorted(record["files"])), texts
            )


def pack(module: str):
    """A module of the pack, for example ``pack("nodes.neurons.merged_results")``; never one that
    needs ComfyUI.
    """
    if _PACK not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            _PACK, paths.ROOT / "__init__.py", submodule_search_locations=[str(paths.ROOT)]
        )
        sys.modules[_PACK] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[_PACK])
    return importlib.import_module(f"{_PACK}.{module}")


def index(found: Iterable[Result], out: Path) -> list[Path]:
    """``index.csv``: one line per piece with its number, values, labels, folder and files."""
    with _table(out / "index.csv") as lines:
        for number, result in enumerate(found):
            columns = {**result.piece.values, **result.piece.labels}
            if not number:
                lines.writerow(["piece", *columns, "folder", "files"])
            folder = (
                result.folder.relative_to(out)
                if result.folder.is_relative_to(out)
                else result.folder
            )
            lines.writerow(
                [result.piece.number, *columns.values(), folder.as_posix(), len(result.files)]
            )
    return [out / "index.csv"]


def scores(found: Iterable[Result], out: Path) -> list[Path]:
    """``scores.csv`` with the rows of all score tables, their histogram as ``histogram.csv`` and
    ``.png``.

    And ``memorized.txt``, a list of the prompts over the threshold for the next job.
    """
    merging = pack("nodes.neurons.merged_results")
    counts = 0

    def tables() -> Iterator[str]:
        nonlocal counts
        for result in found:
            saved = (path.read_text("utf-8") for path in result.named(".csv"))
            for table in itertools.chain(saved, result.texts):
                if table.startswith("prompt,score,"):
                    counts = counts + merging.count_scores(table)
                    memorized.writelines(
                        f"{prompt}\n" for prompt in merging.memorized_prompts(table)
                    )
                    yield table

    with _whole(out / "scores.csv") as file, _whole(out / "memorized.txt") as memorized:
        file.writelines(merging.merge_tables(tables()))
    with _table(out / "histogram.csv") as lines:
        lines.writerow(["from", "to", "prompts"])
        lines.writerows(
            [n / merging.BINS, (n + 1) / merging.BINS, int(of)] for n, of in enumerate(counts)
        )
    _figure(lambda figure: merging.draw_counts(figure, counts), out / "histogram.png")
    return [
        out / name for name in ("scores.csv", "memorized.txt", "histogram.csv", "histogram.png")
    ]


def statistics(found: Iterable[Result], out: Path) -> list[Path]:
    """``statistics.safetensors``: the neuron statistics of all prompts of all pieces."""
    merging, file = pack("nodes.neurons.merged_results"), pack("nodes.neurons.statistics_file")
    parts = (file.read(path, []) for result in found for path in result.named(".safetensors"))
    file.write(merging.merge_statistics(parts), out / "statistics.safetensors")
    return [out / "statistics.safetensors"]


def masks(found: Iterable[Result], out: Path) -> list[Path]:
    """``masks/`` with every piece's mask and an index of their prompts, and ``mask.json``, the
    union of all.
    """
    merging, file = pack("nodes.neurons.merged_results"), pack("nodes.neurons.mask_file")
    merge_masks = pack("nodes.neurons.mask").merge_masks
    folder = _fresh(out / "masks")

    def read() -> Iterator:
        with _table(folder / "index.csv") as lines:
            lines.writerow(["file", *merging.MASK_HEAD])
            for result in found:
                for number, path in enumerate(result.named(".json")):
                    if path.name == "result.json":
                        continue
                    kept = folder / f"{_name(result.piece)}{f'_{number}' if number else ''}.json"
                    _link(path, kept)
                    mask = file.from_json(path.read_text("utf-8"), path.name)
                    lines.writerows([kept.name, *row] for row in merging.mask_rows(mask))
                    yield mask

    file.write(merge_masks(read()), out / "mask.json")
    return [folder, out / "mask.json"]


def loras(found: Iterable[Result], out: Path) -> list[Path]:
    """``population/`` with every piece's LoRA, and ``labels.csv`` with the list's columns for
    each.
    """
    folder = _fresh(out / "population")
    with _table(out / "labels.csv") as lines:
        head = False
        for result in found:
            columns = {**result.piece.values, **result.piece.labels}
            if not head:
                head = bool(lines.writerow(["member", *columns]))
            for number, path in enumerate(result.named(".safetensors")):
                member = f"{_name(result.piece)}{f'_{number}' if number else ''}"
                _link(path, folder / f"{member}.safetensors")
                lines.writerow([member, *columns.values()])
    return [folder, out / "labels.csv"]


def space(found: Iterable[Result], out: Path) -> list[Path]:
    """The population of ``loras``, and ``space.safetensors`` built from it; members are read one at
    a time.
    """
    builder, sources = pack("nodes.weights.space_builder"), pack("nodes.weights.member_sources")
    made = loras(found, out)
    builder.build(
        sources.file_sources(out / "population"), builder.BuildSettings(), out / "space.safetensors"
    )
    return [*made, out / "space.safetensors"]


def quality(found: Iterable[Result], out: Path) -> list[Path]:
    """``quality.txt``: the table of all activations, of pieces that each measured some on all
    images.
    """
    tables = (text for result in found for text in result.texts if text.startswith("ID "))
    (out / "quality.txt").write_text(
        pack("nodes.activations.quality").merge_tables(tables) + "\n", "utf-8"
    )
    return [out / "quality.txt"]


def few_shot(found: Iterable[Result], out: Path) -> list[Path]:
    """``few_shot.txt``: what the Few-Shot Segmenter reported of every image, numbered in the order
    of the list.
    """
    reports = (text for result in found for text in result.texts if text.startswith("image 0:"))
    (out / "few_shot.txt").write_text(
        pack("nodes.activations.few_shot").merge_reports(reports) + "\n", "utf-8"
    )
    return [out / "few_shot.txt"]


def images(found: Iterable[Result], out: Path) -> list[Path]:
    """``sheets/``: pages of all images, each with its piece's number and values above it."""
    folder = _fresh(out / "sheets")
    images_of = ((result.piece.name, result.named(*_IMAGES)) for result in found)
    filled = ((name, files) for name, files in images_of if files)
    for page in itertools.count(1):
        taken = list(itertools.islice(filled, _SHEET))
        if not taken:
            return [folder]
        sheet.write(taken, folder / f"sheet_{page:04}.png")


JOINS: dict[str, Callable[[Iterable[Result], Path], list[Path]]] = {
    one.__name__: one
    for one in (index, scores, statistics, masks, loras, space, quality, few_shot, images)
}


def _name(piece: Piece) -> str:
    """A file name for a piece: its number, and the beginning of its first value."""
    value = next(iter(piece.values.values()), "")
    beginning = re.sub(
        r"[^A-Za-z0-9]+", "_", value.rpartition("/")[2].rpartition(".")[0] or value
    ).strip("_")[:40]
    return f"{piece.number:06}_{beginning}" if beginning else f"{piece.number:06}"


def _link(path: Path, target: Path) -> None:
    """Another name for a file, or a copy where the file system has no links."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


class _whole:  # noqa: N801, reads as a verb in a with statement
    """A text file that appears when it is finished."""

    def __init__(self, path: Path):
        self._path, self._partial = path, path.with_name(f"{path.name}.partial")

    def __enter__(self):
        self._file = self._partial.open("w", encoding="utf-8", newline="")
        return self._file

    def __exit__(self, kind, *rest) -> None:
        self._file.close()
        if kind is None:
            self._partial.replace(self._path)


class _table(_whole):  # noqa: N801
    def __enter__(self):
        return csv.writer(super().__enter__(), lineterminator="\n")


def _figure(draw: Callable, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    figure.savefig(path, dpi=100)
