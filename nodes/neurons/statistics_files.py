"""Neuron statistics on disk: the pack's own .safetensors, and the official code's .pt."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import torch

from .layers import DOWN, MIDDLE, ValueLayer
from .statistics import LayerStatistics, Statistics

_FORMAT = "glassbox neuron statistics 1"
_PARTS = ("mean", "squares", "low", "high")


def write(statistics: Statistics, path: Path) -> None:
    """Write to a temporary name beside ``path`` and rename, so that no half file is left."""
    from safetensors.torch import save_file

    about = {"count": statistics.count, "fingerprint": statistics.fingerprint, "source": statistics.source}
    tensors = {
        f"{layer}.{part}": getattr(moments, part).contiguous()
        for layer, moments in statistics.layers.items()
        for part in _PARTS
    }
    temporary = path.with_name(f"{path.name}.part")
    try:
        save_file(tensors, temporary, {"format": _FORMAT, "statistics": json.dumps(about)})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path, layers: list[ValueLayer]) -> Statistics:
    """Read a file of ``write``, or the official .pt, whose seven layers are matched with the model's by their order.

    Raises ValueError for any other file.
    """
    return _official(path, layers) if path.suffix.lower() in (".pt", ".pth") else _own(path)


def _own(path: Path) -> Statistics:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            if header.get("format") != _FORMAT:
                raise ValueError(f"{path.name} holds no neuron statistics: give a file that Neuron Statistics wrote.")
            about = json.loads(header["statistics"])
            names = sorted({key.rpartition(".")[0] for key in file.keys()})  # noqa: SIM118 safe_open has no __iter__
            moments = {name: LayerStatistics(*(file.get_tensor(f"{name}.{part}") for part in _PARTS)) for name in names}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path.name} cannot be read ({error}): make the statistics again.") from None
    return Statistics(about["count"], moments, about["fingerprint"], about["source"])


def _official(path: Path, layers: list[ValueLayer]) -> Statistics:
    searched = [layer for layer in layers if layer.part in (DOWN, MIDDLE)]
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{path.name} cannot be read safely ({type(error).__name__}): give the file of the "
                         "official code, a tuple of means and deviations.") from None  # fmt: skip
    means, deviations = _two_lists(content, path.name)
    widths, expected = [len(mean) for mean in means], [layer.width for layer in searched]
    if widths != expected:
        raise ValueError(
            f"{path.name} has layers of {widths} neurons and this MODEL's down and middle blocks have {expected}: the "
            "official file is for SD1.4 (and nearly right for SD1.5)."
        )
    unknown = [torch.full((width,), torch.nan, dtype=torch.float64) for width in widths]
    moments = {
        layer.path: LayerStatistics(mean.double(), deviation.double().square(), nothing, nothing)
        for layer, mean, deviation, nothing in zip(searched, means, deviations, unknown, strict=True)
    }
    return Statistics(0, moments, {}, f"official file {path.name}")


def _two_lists(content: object, name: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Means and deviations of the official file; raises ValueError for anything else."""
    if isinstance(content, tuple | list) and len(content) == 2:
        means, deviations = (list(part) if isinstance(part, tuple | list) else [] for part in content)
        vectors = [*means, *deviations]
        flat = all(isinstance(vector, torch.Tensor) and vector.ndim == 1 for vector in vectors)
        same = [getattr(v, "shape", None) for v in means] == [getattr(v, "shape", None) for v in deviations]
        if means and flat and same:
            return means, deviations
    raise ValueError(f"{name} is not the official statistics file: that is a tuple of a list of means and a list of "
                     "deviations, one vector a layer.")  # fmt: skip
