"""Neuron statistics on disk: the pack's own .safetensors, and the official code's .pt."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ..common.atomic_write import atomic_write
from ..common.failures import is_out_of_memory
from ..common.headers import LARGEST_SIDE, Section, shorten
from ..common.safetensors_files import open_file, read_tensors
from .neuron_layers import NeuronLayer, searched_by_paper
from .neuron_statistics import LayerStatistics, Statistics

FORMAT = "glassbox_neuron_statistics"
FORMAT_VERSION = 1
_PARTS = ("mean", "squares", "low", "high", "peak")


def write(statistics: Statistics, path: Path) -> None:
    """Write the .safetensors file; raises WriteError as ``atomic_write``."""
    from safetensors.torch import save_file

    about = {
        "count": statistics.count,
        "fingerprint": statistics.fingerprint,
        "source": statistics.source,
    }
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "statistics": json.dumps(about),
    }
    tensors = {
        f"{layer}.{part}": getattr(moments, part).contiguous()
        for layer, moments in statistics.layers.items()
        for part in _PARTS
    }
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, header)


def read(path: Path, layers: list[NeuronLayer]) -> Statistics:
    """Read a file of ``write``, or the official .pt, whose seven layers are matched with the
    model's by their order.

    Raises ValueError for any other file.
    """
    return _official(path, layers) if path.suffix.lower() in (".pt", ".pth") else _own(path)


def _own(path: Path) -> Statistics:
    with open_file(path, "run Neuron Statistics again") as file:
        header = Section(file.metadata() or {}, path.name)
        tensors = read_tensors(file, path.name)
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path.name} holds no neuron statistics: use a file from Neuron Statistics."
        )
    if header.get("format_version") != str(FORMAT_VERSION):
        raise ValueError(
            f"{path.name} has format version {shorten(header.get('format_version'))} and this "
            f"Glassbox reads {FORMAT_VERSION}: update Glassbox."
        )
    layers = {}
    for name in sorted({key.rpartition(".")[0] for key in tensors}):
        names = [f"{name}.{part}" for part in _PARTS]
        if not all(key in tensors for key in names):
            raise ValueError(f"{path.name} is damaged: run Neuron Statistics again.")
        layers[name] = LayerStatistics(*(tensors[key].double() for key in names))
    about = header.parsed("statistics")
    values = about.section("fingerprint")
    fingerprint = {layer: values.numbers(layer) for layer in values}
    statistics = Statistics(
        about.integer("count", high=LARGEST_SIDE), layers, fingerprint, about.text("source")
    )
    if not all(map(_is_valid, layers.values())):
        raise ValueError(f"{path.name} is damaged: run Neuron Statistics again.")
    return statistics


def _is_valid(layer: LayerStatistics) -> bool:
    """Whether the moments are vectors of one length, with finite means and sums of squares that are
    not negative.
    """
    shapes = {getattr(layer, part).shape for part in _PARTS}
    finite = bool(layer.mean.isfinite().all() and layer.squares.isfinite().all())
    return len(shapes) == 1 and layer.mean.ndim == 1 and finite and bool((layer.squares >= 0).all())


def _official(path: Path, layers: list[NeuronLayer]) -> Statistics:
    searched = searched_by_paper(layers)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes the unpickler raise nearly anything
        if is_out_of_memory(error):
            raise
        raise ValueError(
            f"{path.name} cannot be read safely ({type(error).__name__}): use the file of the "
            "official code, a tuple of means and standard deviations."
        ) from None
    means, deviations = _means_and_deviations(content, path.name)
    widths = [len(mean) for mean in means]
    expected = [layer.width for layer in searched]
    if widths != expected:
        raise ValueError(
            f"{path.name} has layers of {widths} neurons and this MODEL's down and middle blocks "
            f"have {expected}: the official file is for SD1.4 (and approximately right for SD1.5)."
        )
    unknown = [torch.full((width,), torch.nan, dtype=torch.float64) for width in widths]
    moments = {
        layer.path: LayerStatistics(
            mean=mean.double(),
            squares=deviation.double().square(),
            low=nothing,
            high=nothing,
            peak=nothing,
        )
        for layer, mean, deviation, nothing in zip(
            searched, means, deviations, unknown, strict=True
        )
    }
    return Statistics(0, moments, {}, f"official file {path.name}")


def _means_and_deviations(
    content: object, name: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Means and standard deviations of the official file; raises ValueError for anything else."""
    if isinstance(content, tuple | list) and len(content) == 2:
        means, deviations = (
            list(part) if isinstance(part, tuple | list) else [] for part in content
        )
        vectors = [*means, *deviations]
        flat = all(
            isinstance(vector, torch.Tensor) and vector.ndim == 1 and bool(vector.isfinite().all())
            for vector in vectors
        )
        same = [getattr(v, "shape", None) for v in means] == [
            getattr(v, "shape", None) for v in deviations
        ]
        if means and flat and same:
            return means, deviations
    raise ValueError(
        f"{name} is not the official statistics file, a tuple of a list of means and a list of "
        "standard deviations with one vector per layer."
    )
