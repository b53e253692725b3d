"""The pixel classifier of the paper's few-shot protocol: ten small networks, each trained on pixels in its own order.

ArXiv 2410.03558, section 6 (label-scarce segmentation), after DatasetGAN and DatasetDDPM: two hidden layers with ReLU
and batch normalisation, weights from N(0, 0.02), Adam at 1e-3, cross-entropy, batches of 64 pixels. All ten are trained
at once as one batched product; each stops for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

MEMBERS = 10
EPOCHS = 100
_BATCH, _RATE, _SPREAD = 64, 1e-3, 0.02
#: From the fourth epoch on a member stops when so many batches have brought no new lowest loss.
_PATIENT_EPOCHS, _PATIENCE = 3, 50
_MANY_CLASSES = 30
_MOMENTUM, _EPSILON = 0.1, 1e-5
_REPORT = 32  # batches between two looks at the Stop button

Pixels = Callable[[torch.Tensor], torch.Tensor]
Watch = Callable[[Iterable[int]], Iterator[int]]


@dataclass
class Ensemble:
    """``weights``: parameters of all members stacked along the first axis; ``moments``: batch norms' running ones."""

    weights: list[torch.Tensor]
    moments: list[tuple[torch.Tensor, torch.Tensor]]

    def probabilities(self, pixels: torch.Tensor) -> torch.Tensor:
        """Class probabilities float32 (members, N, classes) of pixels (N, D)."""
        shared = pixels.float().expand(len(self.weights[0]), -1, -1)
        return _forward(self.weights, shared, [_Fixed(*one) for one in self.moments]).softmax(-1)


def train(
    pixels: Pixels, labels: torch.Tensor, width: int, classes: int, seed: int, epochs: int = EPOCHS, watch: Watch = iter
) -> Ensemble:
    """Train on ``len(labels)`` pixels; ``pixels(indices)`` gives their activations (N, width), ``labels`` is (P,).

    At most ``epochs`` rounds through all pixels; what does not fill a last batch is dropped, as in the paper's code.
    ``watch`` is handed the range of the looks at the Stop button and may end the training by raising. Global generators
    are not touched.
    """
    with torch.inference_mode(False), torch.enable_grad():
        return _Training(pixels, labels.clone(), width, classes, seed).run(epochs, watch)


class _Training:
    def __init__(self, pixels: Pixels, labels: torch.Tensor, width: int, classes: int, seed: int):
        self._pixels, self._labels = pixels, labels
        self._generator = torch.Generator().manual_seed(seed)
        self._weights = _initial(width, classes, self._generator)
        sizes = [self._weights[index].shape[-1] for index in (0, 4)]
        self._norms = [_Running(torch.zeros(MEMBERS, 1, size), torch.ones(MEMBERS, 1, size)) for size in sizes]
        self._size = min(_BATCH, len(labels))
        self._lowest, self._since = torch.full((MEMBERS,), torch.inf), torch.zeros(MEMBERS, dtype=torch.int64)
        self._result: list[tuple | None] = [None] * MEMBERS

    def run(self, epochs: int, watch: Watch) -> Ensemble:
        optimizer = torch.optim.Adam(self._weights, lr=_RATE, fused=True)
        batches = max(len(self._labels) // self._size, 1)
        total = epochs * batches
        for report in watch(range(-(-total // _REPORT))):
            for number in range(report * _REPORT, min((report + 1) * _REPORT, total)):
                if number % batches == 0:
                    orders = torch.stack([self._order() for _ in range(MEMBERS)])
                place = number % batches * self._size
                self._step(optimizer, orders[:, place : place + self._size])
                self._stop_members(number // batches)
            if all(self._result):
                break
        return self._finished()

    def _order(self) -> torch.Tensor:
        return torch.randperm(len(self._labels), generator=self._generator)

    def _step(self, optimizer: torch.optim.Optimizer, chosen: torch.Tensor) -> None:
        pixels = self._pixels(chosen.flatten()).float().view(*chosen.shape, -1)
        logits = _forward(self._weights, pixels, self._norms)
        losses = F.cross_entropy(logits.movedim(-1, 1), self._labels[chosen], reduction="none").mean(1)
        optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()  # members share no weight, so each gets the gradient of its own loss
        optimizer.step()
        better = losses.detach() < self._lowest
        self._lowest = torch.where(better, losses.detach(), self._lowest)
        self._since = torch.where(better, 0, self._since + 1)

    def _stop_members(self, epoch: int) -> None:
        if epoch >= _PATIENT_EPOCHS:
            for member in torch.nonzero(self._since > _PATIENCE).flatten().tolist():
                self._result[member] = self._result[member] or self._member(member)

    def _member(self, member: int) -> tuple:
        """A copy of what a member is now."""
        moments = [(norm.mean[member].clone(), norm.variance[member].clone()) for norm in self._norms]
        return [weight.detach()[member].clone() for weight in self._weights], moments

    def _finished(self) -> Ensemble:
        members = [result or self._member(member) for member, result in enumerate(self._result)]
        weights = [torch.stack(stack) for stack in zip(*(weights for weights, _ in members), strict=True)]
        moments = [
            (torch.stack([mean for mean, _ in norm]), torch.stack([variance for _, variance in norm]))
            for norm in zip(*(moments for _, moments in members), strict=True)
        ]
        return Ensemble(weights, moments)


def _initial(width: int, classes: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Weight, bias, and the norm's scale and shift of two hidden layers; then weight and bias of the last."""
    hidden = (256, 128) if classes >= _MANY_CLASSES else (128, 32)
    weights = []

    def drawn(mean: float, *shape: int) -> list[torch.Tensor]:
        return [mean + torch.randn(MEMBERS, *shape, generator=generator) * _SPREAD, torch.zeros(MEMBERS, 1, shape[-1])]

    for inner, outer in ((width, hidden[0]), hidden):
        weights += drawn(0, inner, outer) + drawn(1, 1, outer)
    weights += drawn(0, hidden[1], classes)
    return [weight.requires_grad_() for weight in weights]


def _forward(weights: list[torch.Tensor], pixels: torch.Tensor, norms: list) -> torch.Tensor:
    """Logits (members, N, classes) of pixels (members, N, D): linear, ReLU, batch norm, twice; then linear."""
    for layer, norm in enumerate(norms):
        weight, bias, scale, shift = weights[4 * layer : 4 * layer + 4]
        pixels = norm(torch.baddbmm(bias, pixels, weight).relu()) * scale + shift
    return torch.baddbmm(weights[-1], pixels, weights[-2])


@dataclass
class _Running:
    """Batch normalisation in training: by the batch's own moments, which the running ones follow."""

    mean: torch.Tensor
    variance: torch.Tensor

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(values, dim=1, keepdim=True, correction=0)
        count = values.shape[1]
        self.mean = torch.lerp(self.mean, mean.detach(), _MOMENTUM)
        self.variance = torch.lerp(self.variance, variance.detach() * count / max(count - 1, 1), _MOMENTUM)
        return (values - mean) * torch.rsqrt(variance + _EPSILON)


@dataclass
class _Fixed:
    """Batch normalisation in use: by the running moments."""

    mean: torch.Tensor
    variance: torch.Tensor

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.mean) * torch.rsqrt(self.variance + _EPSILON)
