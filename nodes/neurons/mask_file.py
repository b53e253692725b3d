"""Neuron masks on disk: readable JSON, and the official code's result table."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

from ..common.atomic_write import atomic_write, read_text
from .mask import CAVEATS, NeuronMask, SearchRecord, sort_scales, uniform_scales
from .memorization_score import PAPER_THRESHOLD
from .neuron_layers import NeuronLayer, searched_by_paper

FORMAT, FORMAT_VERSION = "glassbox_neuron_mask", 1


def to_json(mask: NeuronMask) -> str:
    """A mask as JSON text."""
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "caveats": list(CAVEATS),
        "layers": {path: {str(index): scale for index, scale in of.items()} for path, of in mask.scales.items()},
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
    """Read what ``to_json`` wrote; ``name`` is for the message. Raises ValueError for any other text."""
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise ValueError
        version = content["format_version"]
        if version == FORMAT_VERSION:
            scales = {path: {int(i): float(s) for i, s in of.items()} for path, of in content["layers"].items()}
            searches = tuple(_search_record(dict(entry)) for entry in content["searches"])
            if not all(i >= 0 and math.isfinite(s) for of_layer in scales.values() for i, s in of_layer.items()):
                raise ValueError
            fingerprint = {path: tuple(map(float, values)) for path, values in content["fingerprint"].items()}
            return NeuronMask(sort_scales(scales), searches, fingerprint, tuple(content["history"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"{name} is not a neuron mask: use a .json file from Save Neuron Mask, or the result table (.csv) of the "
            "official code."
        ) from None
    raise ValueError(f"{name} has format version {version} and this Glassbox reads {FORMAT_VERSION}: update Glassbox.")


def _search_record(entry: dict) -> SearchRecord:
    prompt, converged, neurons = entry.pop("prompt"), entry.pop("converged"), entry.pop("neurons")
    z = [float(value) for of_layer in entry.get("z", {}).values() for value in of_layer.values()]
    if not isinstance(prompt, str) or not isinstance(converged, bool) or not all(map(math.isfinite, z)):
        raise ValueError
    by_path = {path: tuple(int(index) for index in indices) for path, indices in neurons.items()}
    return SearchRecord(prompt, by_path, converged, entry)


def write(mask: NeuronMask, path: Path) -> None:
    """Write the JSON file; raises WriteError as ``atomic_write``."""
    with atomic_write(path) as temporary:
        temporary.write_text(to_json(mask), encoding="utf-8")


def read(path: Path, layers: list[NeuronLayer], threshold: float = PAPER_THRESHOLD) -> NeuronMask:
    """Read a file of ``write``, or the official .csv for a model of these layers; raises ValueError for any other."""
    text = read_text(path)
    if path.suffix.lower() == ".csv":
        return from_official_table(text, layers, path.name, threshold)
    return from_json(text, path.name)


def from_official_table(
    text: str, layers: list[NeuronLayer], name: str, threshold: float = PAPER_THRESHOLD
) -> NeuronMask:
    """The refined neurons of every prompt of an official result table (columns separated by ``;``) as one mask.

    Its layers are the model's down and middle ones in their order. ``threshold`` is the ``--ssim_threshold`` of that
    run, at or below which a search converged. Prompts that the run skipped have no record. Raises ValueError for a
    table of another kind.
    """
    paths = [layer.path for layer in searched_by_paper(layers)]
    searches, rows = [], 0
    try:
        for row in csv.DictReader(io.StringIO(text), delimiter=";"):
            found = json.loads(row["Refined Neurons"])
            by_path = dict(zip(paths, found, strict=True))
            neurons = {path: tuple(sorted({int(i) for i in indices})) for path, indices in by_path.items() if indices}
            details = {
                "score_after_selection": float(row["Initial SSIM"]),
                "score_after_refinement": float(row["Refined SSIM"]),
            }
            converged = details["score_after_selection"] <= threshold
            rows += 1
            if any(json.loads(row["Initial Neurons"])):
                searches.append(SearchRecord(row["Caption"], neurons, converged, details))
        if not rows:
            raise ValueError
    except (KeyError, ValueError, TypeError, RecursionError, csv.Error):
        raise ValueError(
            f"{name} is not the official result table for {len(paths)} layers: its columns are Caption, Refined "
            "Neurons and so on, separated by semicolons."
        ) from None
    found = ((path, index) for search in searches for path, indices in search.neurons.items() for index in indices)
    return NeuronMask(uniform_scales(found), tuple(searches), {}, (f"official table {name}",))
