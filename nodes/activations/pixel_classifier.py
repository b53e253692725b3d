"""The pixel classifier of the paper's few-shot protocol: ten small networks, each trained on pixels
in its own order.

ArXiv 2410.03558, section 6 (label-scarce segmentation), after DatasetGAN and DatasetDDPM: two
hidden layers with ReLU and batch normalization, weights from N(0, 0.02), Adam at 1e-3,
cross-entropy, batches of 64 pixels. All ten are trained at once with torch.func; each stops on its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

MEMBERS = 10
EPOCHS = 100
#: Pixels per side in the paper.
SIDE = 256
_BATCH = 64
_RATE = 1e-3
_STD = 0.02
#: From the fourth epoch on a member stops after so many batches without a new lowest loss.
_MIN_EPOCHS = 3
_PATIENCE = 50
_MANY_CLASSES = 30
_REPORT = 32  # batches between two checks for an interrupt

Pixels = Callable[[torch.Tensor], torch.Tensor]
Watch = Callable[[Iterable[int]], Iterator[int]]


@dataclass
class Ensemble:
    """``network``: one member without its weights; ``parameters``, ``buffers``: those of all
    members, stacked.
    """

    network: nn.Sequential
    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]

    def to(self, device: torch.device) -> Ensemble:
        """The same with its tensors on a device."""
        parameters = {name: value.detach().to(device) for name, value in self.parameters.items()}
        return Ensemble(
            self.network,
            parameters,
            {name: value.to(device) for name, value in self.buffers.items()},
        )

    def probabilities(self, pixels: torch.Tensor) -> torch.Tensor:
        """Class probabilities float32 (members, N, classes) of pixels (N, D)."""
        return self.probabilities_of(self.first_layer(pixels.float()))

    def first_layer(self, pixels: torch.Tensor) -> torch.Tensor:
        """The first layer of all members, before its ReLU, for pixels (N, D): (N, members * width).
        It is affine.
        """
        weight = self.parameters["0.weight"]
        bias = self.parameters["0.bias"]
        return F.linear(pixels, weight.flatten(0, 1), bias.flatten())

    def probabilities_of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Class probabilities float32 (members, N, classes) of what ``first_layer`` gives."""
        rest = self.network.eval()[1:]

        def logits(parameters: dict, buffers: dict, inputs: torch.Tensor) -> torch.Tensor:
            return functional_call(rest, (parameters, buffers), (inputs,))

        parameters = {
            name: value for name, value in self.parameters.items() if not name.startswith("0.")
        }
        return vmap(logits, (0, 0, 1))(
            parameters, self.buffers, hidden.unflatten(1, (MEMBERS, -1))
        ).softmax(-1)

    def training_logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Logits (members, N, classes) of each member's own pixels (members, N, D), with batch
        statistics.
        """
        self.network.train()
        return vmap(self._logits)(self.parameters, self.buffers, pixels)

    def _logits(self, parameters: dict, buffers: dict, pixels: torch.Tensor) -> torch.Tensor:
        return functional_call(self.network, (parameters, buffers), (pixels,))


def train(
    pixels: Pixels,
    labels: torch.Tensor,
    width: int,
    classes: int,
    seed: int,
    epochs: int = EPOCHS,
    watch: Watch = iter,
) -> Ensemble:
    """Train on ``len(labels)`` pixels; ``pixels(indices)`` returns their activations (N, width),
    ``labels`` is (P,).

    Everything is on the device of the labels; what is drawn is drawn on the CPU.

    At most ``epochs`` passes over all pixels; an incomplete last batch is dropped, as in the
    paper's code. ``watch`` wraps the range of training parts and may stop by raising. Global
    generators are not used.
    """
    with torch.inference_mode(False), torch.enable_grad():
        members = initial(width, classes, seed)
        if labels.device.type != "cpu":
            members = members.to(labels.device)
            for value in members.parameters.values():
                value.requires_grad_()
        return _train(
            pixels, labels.clone(), members=members, seed=seed, epochs=epochs, watch=watch
        )


def initial(width: int, classes: int, seed: int) -> Ensemble:
    """The untrained members."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (256, 128) if classes >= _MANY_CLASSES else (128, 32)

    def member() -> nn.Sequential:
        sizes = ((width, first), (first, second))
        layers = [
            layer for a, b in sizes for layer in (nn.Linear(a, b), nn.ReLU(), nn.BatchNorm1d(b))
        ]
        return nn.Sequential(*layers, nn.Linear(second, classes))

    with torch.random.fork_rng(devices=[]):  # torch's own initialization, which is replaced
        members = [member() for _ in range(MEMBERS)]
    parameters, buffers = stack_module_state(members)
    for name, value in parameters.items():
        mean = (
            1.0 if value.ndim == 2 and name.endswith("weight") else 0.0
        )  # the scale of a batch norm
        spread = _STD if name.endswith("weight") else 0.0
        value.data = mean + spread * torch.randn(value.shape, generator=generator)
    return Ensemble(members[0].to("meta"), parameters, buffers)


def _train(
    pixels: Pixels, labels: torch.Tensor, members: Ensemble, seed: int, epochs: int, watch: Watch
) -> Ensemble:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(list(members.parameters.values()), lr=_RATE, fused=True)
    size = min(_BATCH, len(labels))
    batches = max(len(labels) // size, 1)
    total = epochs * batches
    device = labels.device
    lowest = torch.full((MEMBERS,), torch.inf, device=device)
    since = torch.zeros(MEMBERS, dtype=torch.int64, device=device)
    stopped = torch.zeros(MEMBERS, dtype=torch.bool, device=device)
    result = _copy(members)
    for report in watch(range(-(-total // _REPORT))):
        for number in range(report * _REPORT, min((report + 1) * _REPORT, total)):
            if number % batches == 0:
                orders = torch.stack(
                    [torch.randperm(len(labels), generator=generator) for _ in range(MEMBERS)]
                ).to(device)
            place = number % batches * size
            losses = step(
                members,
                optimizer,
                pixels=pixels,
                labels=labels,
                chosen=orders[:, place : place + size],
            )
            since = torch.where(losses < lowest, 0, since + 1)
            lowest = torch.minimum(lowest, losses)
            stops = (since > _PATIENCE) & ~stopped
            if number // batches >= _MIN_EPOCHS and stops.any():
                _copy_rows(members, result, stops)
                stopped |= stops
        if stopped.all():
            break
    _copy_rows(members, result, ~stopped)
    return result


def step(
    members: Ensemble,
    optimizer: torch.optim.Optimizer,
    pixels: Pixels,
    labels: torch.Tensor,
    chosen: torch.Tensor,
) -> torch.Tensor:
    """One optimizer step of every member on its own pixels ``chosen`` (members, batch); returns
    their losses.
    """
    logits = members.training_logits(pixels(chosen.flatten()).float().view(*chosen.shape, -1))
    losses = F.cross_entropy(logits.movedim(-1, 1), labels[chosen], reduction="none").mean(1)
    optimizer.zero_grad(set_to_none=True)
    losses.sum().backward()  # members share no weight, so each gets the gradient of its own loss
    optimizer.step()
    return losses.detach()


def _copy(members: Ensemble) -> Ensemble:
    states = (
        {name: value.detach().clone() for name, value in state.items()}
        for state in (members.parameters, members.buffers)
    )
    return Ensemble(members.network, *states)


def _copy_rows(source: Ensemble, target: Ensemble, rows: torch.Tensor) -> None:
    for name, value in {**source.parameters, **source.buffers}.items():
        (target.parameters if name in target.parameters else target.buffers)[name][rows] = (
            value.detach()[rows]
        )
