"""How two networks differ on the same images, activation by activation.

Linear CKA (arXiv 1905.00414, equation 4 for linear kernels) and the relative difference ``|B - A| /
|A|``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from .activations import Activations

Watch = Callable[[Iterable], Iterator]


def linear_cka(first: torch.Tensor, second: torch.Tensor) -> float:
    """CKA of two features (rows, C, H, W) and (rows, C', H, W), whose samples are all positions of
    all rows: 0..1.

    ``|Y^T X|^2 / (|X^T X| |Y^T Y|)`` with centered columns, Frobenius norms. 1 for features that
    are equal up to rotation and scale; 0 where one is constant.
    """
    x, y = (feature.double().movedim(1, -1).flatten(0, -2) for feature in (first, second))
    x = x - x.mean(0)
    y = y - y.mean(0)
    norms = (x.T @ x).norm() * (y.T @ y).norm()
    return float((y.T @ x).square().sum() / norms) if norms > 0 else 0.0


def relative_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """``|second - first| / |first|`` over all rows, channels and positions; 0 for equal
    features.
    """
    first = first.double()
    return float((second.double() - first).norm() / first.norm().clamp_min(1e-30))


def compare(
    reference: Activations, models: Mapping[str, Activations], watch: Watch = iter
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """The relative difference and the linear CKA of each model's activations to the first one's:
    name -> ID -> number.

    ``watch`` is given the activations to iterate over. Raises ValueError as ``check_same`` does.
    """
    for other in models.values():
        check_same(reference, other)
    difference: dict[str, dict[str, float]] = {name: {} for name in models}
    cka: dict[str, dict[str, float]] = {name: {} for name in models}
    for id_, first in watch(reference.features.items()):
        for name, other in models.items():
            difference[name][id_] = relative_difference(first, other.features[id_])
            cka[name][id_] = linear_cka(first, other.features[id_])
    return difference, cka


def check_same(first: Activations, second: Activations) -> None:
    """Raise ValueError unless both hold the same IDs, shapes, rows and noise level."""
    shapes = [{id_: value.shape for id_, value in one.features.items()} for one in (first, second)]
    if shapes[0] != shapes[1] or first.rows != second.rows:
        raise ValueError(
            "The activations differ in IDs, sizes or rows. Tap the same images with the same "
            "preset, on models of one architecture."
        )
    if first.sigma != second.sigma or first.settings.get("seed") != second.settings.get("seed"):
        raise ValueError(
            "The activations differ in noise level or seed. Tap both with the same level and seed."
        )
