"""Neuron masks on disk: readable JSON, and the official code's result table."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from pathlib import Path

from ..common.atomic_write import atomic_write, read_text
from ..common.headers import HeaderError, Section, read_section
from .mask import CAVEATS, NeuronMask, SearchRecord, sort_scales, uniform_scales
from .memorization_score import PAPER_THRESHOLD
from .neuron_layers import NeuronLayer, searched_by_paper

FORMAT = "glassbox_neuron_mask"
FORMAT_VERSION = 1
#: What a search notes of each neuron besides its scale.
DETAILS = ("z", "activation")
_DIGITS = 9  # of a neuron's index


def to_json(mask: NeuronMask) -> str:
    """A mask as JSON text."""
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "caveats": list(CAVEATS),
        "layers": {
            path: {str(index): scale for index, scale in of.items()}
            for path, of in mask.scales.items()
        },
        "searches": [
            {
                "prompt": search.prompt,
                "converged": search.converged,
                "neurons": {path: list(indices) for path, indices in search.neurons.items()},
                **search.details,
            }
            for search in mask.searches
        ],
        "history": list(mask.history),
        "fingerprint": mask.fingerprint,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def from_json(text: str, name: str) -> NeuronMask:
    """Read what ``to_json`` wrote; ``name`` is for the message. Raises ValueError for any other
    text.
    """
    content = Section({}, name)
    with contextlib.suppress(HeaderError):
        content = read_section(text, name, "it")
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{name} is not a neuron mask: use a .json file from Save Neuron Mask, or the result "
            "table (.csv) of the official code."
        )
    version = content.integer("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{name} has format version {version} and this Glassbox reads {FORMAT_VERSION}: update "
            "Glassbox."
        )
    layers = content.section("layers")
    scales = {path: _by_neuron(layers.section(path)) for path in layers}
    searches = tuple(_search_record(entry) for entry in content.sections("searches"))
    values = content.section("fingerprint")
    fingerprint = {path: values.numbers(path) for path in values}
    return NeuronMask(sort_scales(scales), searches, fingerprint, content.texts("history"))


def _by_neuron(values: Section) -> dict[int, float]:
    """The numbers of a layer's neurons by index, which are the keys."""
    by_index = {}
    for key in values:
        if not (key.isascii() and key.isdigit() and len(key) <= _DIGITS):
            raise HeaderError(
                f"{values.file} has the key {key[:60]!r} under {values.path[:-1]}, which is no "
                "neuron."
            )
        by_index[int(key)] = values.number(key)
    return by_index


def _search_record(entry: Section) -> SearchRecord:
    neurons = entry.section("neurons")
    by_path = {path: neurons.integers(path, high=10**_DIGITS) for path in neurons}
    for name in DETAILS:
        details = entry.section(name, default=Section({}, entry.file))
        for path in details:
            _by_neuron(details.section(path))
    selected_by = entry.section("selected_by", default=Section({}, entry.file))
    for path in selected_by:
        reasons = selected_by.section(path)
        for index in reasons:
            reasons.text(index)
    rest = {
        key: value
        for key, value in entry.present().items()
        if key not in ("prompt", "converged", "neurons")
    }
    return SearchRecord(entry.text("prompt"), by_path, entry.switch("converged"), rest)


def write(mask: NeuronMask, path: Path) -> None:
    """Write the JSON file; raises WriteError as ``atomic_write``."""
    with atomic_write(path) as temporary:
        temporary.write_text(to_json(mask), encoding="utf-8")


def read(path: Path, layers: list[NeuronLayer], threshold: float = PAPER_THRESHOLD) -> NeuronMask:
    """Read a file of ``write``, or the official .csv for a model of these layers; raises ValueError
    for any other.
    """
    text = read_text(path)
    if path.suffix.lower() == ".csv":
        return from_official_table(text, layers, path.name, threshold)
    return from_json(text, path.name)


def from_official_table(
    text: str, layers: list[NeuronLayer], name: str, threshold: float = PAPER_THRESHOLD
) -> NeuronMask:
    """The refined neurons of every prompt of an official result table (columns separated by ``;``)
    as one mask.

    Its layers are the model's down and middle ones in their order. ``threshold`` is the
    ``--ssim_threshold`` of that run, at or below which a search converged. Prompts that the run
    skipped have no record. Raises ValueError for a table of another kind.
    """
    paths = [layer.path for layer in searched_by_paper(layers)]
    searches = []
    rows = 0
    try:
        for row in csv.DictReader(io.StringIO(text), delimiter=";"):
            by_path = dict(zip(paths, json.loads(row["Refined Neurons"]), strict=True))
            neurons = {
                path: tuple(sorted({int(i) for i in indices}))
                for path, indices in by_path.items()
                if indices
            }
            details = {
                "score_after_selection": float(row["Initial SSIM"]),
                "score_after_refinement": float(row["Refined SSIM"]),
            }
            if not all(map(math.isfinite, details.values())):
                raise ValueError
            converged = details["score_after_selection"] <= threshold
            rows += 1
            if any(json.loads(row["Initial Neurons"])):
                searches.append(SearchRecord(row["Caption"], neurons, converged, details))
        if not rows:
            raise ValueError
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError, csv.Error):
        raise ValueError(
            f"{name} is not the official result table for {len(paths)} layers: its columns are "
            "Caption, Refined Neurons and so on, separated by semicolons."
        ) from None
    found = (
        (path, index)
        for search in searches
        for path, indices in search.neurons.items()
        for index in indices
    )
    return NeuronMask(uniform_scales(found), tuple(searches), {}, (f"official table {name}",))
