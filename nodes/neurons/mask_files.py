"""Neuron masks on disk: JSON that a person can read, and the official code's result table."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

from .layers import DOWN, MIDDLE, ValueLayer
from .mask import CAVEATS, Finding, NeuronMask, tidy

_FORMAT = "glassbox neuron mask 1"


def to_text(mask: NeuronMask) -> str:
    """A mask as JSON text."""
    content = {
        "format": _FORMAT,
        "read this": list(CAVEATS),
        "layers": {path: {str(index): scale for index, scale in of.items()} for path, of in mask.scales.items()},
        "findings": [
            {"prompt": found.prompt, "converged": found.converged,
             "neurons": {path: list(indices) for path, indices in found.neurons.items()}, **found.details}
            for found in mask.findings
        ],
        "history": list(mask.history),
        "model fingerprint": mask.fingerprint,
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def from_text(text: str, name: str) -> NeuronMask:
    """Read what ``to_text`` wrote; raises ValueError for any other text. ``name`` is for the message."""
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError
        scales = {path: {int(i): float(s) for i, s in of.items()} for path, of in content["layers"].items()}
        findings = tuple(_finding(dict(entry)) for entry in content["findings"])
        if not all(i >= 0 and math.isfinite(s) for of_layer in scales.values() for i, s in of_layer.items()):
            raise ValueError
        fingerprint = {path: float(size) for path, size in content["model fingerprint"].items()}
        return NeuronMask(tidy(scales), findings, fingerprint, tuple(content["history"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{name} is no neuron mask: give a .json that Save Neuron Mask wrote, or the result table "
                         "(.csv) "
                         "of the official code.") from None  # fmt: skip


def write(mask: NeuronMask, path: Path) -> None:
    """Write to a temporary name beside ``path`` and rename, so that no half file is left."""
    temporary = path.with_name(f"{path.name}.part")
    try:
        temporary.write_text(to_text(mask), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def from_official(text: str, layers: list[ValueLayer], name: str) -> NeuronMask:
    """The refined neurons of every prompt of an official result table (columns by ``;``), joined in one mask.

    Its layers are the model's down and middle ones by their order. Raises ValueError for a table of another kind.
    """
    paths = [layer.path for layer in layers if layer.part in (DOWN, MIDDLE)]
    findings = []
    try:
        for row in csv.DictReader(io.StringIO(text), delimiter=";"):
            found = json.loads(row["Refined Neurons"])
            named = dict(zip(paths, found, strict=True))
            neurons = {path: tuple(sorted({int(i) for i in indices})) for path, indices in named.items() if indices}
            details = {"initial score": float(row["Initial SSIM"]), "refined score": float(row["Refined SSIM"])}
            converged = details["initial score"] <= 0.428
            findings.append(Finding(row["Caption"], neurons, converged, details))
        if not findings:
            raise ValueError
    except (KeyError, ValueError, TypeError):
        raise ValueError(f"{name} is not the official result table for {len(paths)} layers: its columns are Caption, "
                         "Refined Neurons and so on, separated by semicolons.") from None  # fmt: skip
    scales: dict[str, dict[int, float]] = {}
    for found in findings:
        for path, indices in found.neurons.items():
            scales.setdefault(path, {}).update(dict.fromkeys(indices, 0.0))
    return NeuronMask(tidy(scales), tuple(findings), {}, (f"official table {name}",))


def _finding(entry: dict) -> Finding:
    prompt, converged, neurons = entry.pop("prompt"), entry.pop("converged"), entry.pop("neurons")
    return Finding(prompt, {path: tuple(indices) for path, indices in neurons.items()}, converged, entry)
