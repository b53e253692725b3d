"""Train a TopK sparse autoencoder on positions of an activation, a batch at a time, so that it
resumes exactly.

Gao et al. (arXiv 2406.04093): the loss of section 2.3, the auxiliary loss for dead features of
section 2.4 and appendix A.2, unit columns of the decoder with the gradient's parallel part removed
(appendix A.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from ..common.resume import (
    Identity,
    check_length,
    check_tensors,
    damaged,
    load_state,
    save_state,
)
from .sparse_autoencoder import ActiveFeatures, SparseAutoencoder

#: Weight of the auxiliary loss, and Adam's epsilon, as in the paper.
AUXILIARY = 1 / 32
EPSILON = 6.25e-10
_MEMORY = 0.999  # of the running mean of a feature's values
_NAMES = ("encoder", "decoder", "pre_bias", "latent_bias")
_MOMENTS = ("exp_avg", "exp_avg_sq")
_KIND = "sparse autoencoder training"
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """``features`` of a position, of which ``k`` are active; dead is what was not active in
    ``dead_after`` batches.
    """

    features: int
    k: int
    learning_rate: float
    dead_after: int = 100
    seed: int


def loss(
    points: torch.Tensor, parameters: dict[str, torch.Tensor], k: int, dead: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, ActiveFeatures]:
    """The mean over positions of ``|x - x'|^2``, that of the auxiliary loss ``|e - e'|^2``, and the
    active features.

    ``points``: (N, C); ``parameters``: as in ``SparseAutoencoder``; ``dead``: (F,), which features
    are dead. ``e = x - x'`` is the error, which carries no gradient, and ``e'`` its reconstruction
    from the C / 2 dead features with the largest values.
    """
    encoder, decoder, pre_bias, latent_bias = (parameters[name] for name in _NAMES)
    values = torch.addmm(latent_bias, points - pre_bias, encoder.T)
    features = ActiveFeatures.of(values, k)
    error = points - pre_bias - features.decode(decoder)
    chosen = dead.nonzero()[:, 0]
    if len(chosen):
        revived = (
            ActiveFeatures.of(values[:, chosen], max(points.shape[1] // 2, 1)).dense(len(chosen))
            @ decoder[chosen]
        )
        auxiliary = (error.detach() - revived).square().sum(1).mean()
    else:
        auxiliary = error.new_zeros(())
    return error.square().sum(1).mean(), auxiliary, features


class Trainer:
    """The parameters under training, in units in which positions have a total variance of 1, and
    Adam's moments.

    They are on the device of the positions, or on ``device``; ``state`` and the autoencoder are on
    the CPU.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        state: dict[str, torch.Tensor],
        device: torch.device | str = "cpu",
    ):
        state = {name: value.to(device) for name, value in state.items()}
        self._settings = settings
        self._center = state["center"]
        self._scale = state["scale"]
        self._parameters = {name: state[name].clone().requires_grad_() for name in _NAMES}
        self._optimizer = torch.optim.Adam(
            self._parameters.values(), lr=settings.learning_rate, eps=EPSILON
        )
        for name, parameter in self._parameters.items():
            moments = {key: state[f"{name}.{key}"].clone() for key in _MOMENTS}
            self._optimizer.state[parameter] = {
                "step": state["steps"].cpu().clone().float(),
                **moments,
            }
        self._idle, self._sums, self._counts = (
            state[name].clone() for name in ("idle", "sums", "counts")
        )
        self.steps = int(state["steps"])

    @classmethod
    def start(cls, settings: TrainingSettings, points: torch.Tensor) -> Trainer:
        """Start from positions (N, C): the bias at their mean, the decoder random, the encoder its
        transpose.
        """
        center = points.mean(0)
        scale = (points - center).square().sum(1).mean().sqrt().clamp_min(1e-12)
        generator = torch.Generator().manual_seed(settings.seed)
        drawn = torch.randn(settings.features, points.shape[1], generator=generator).to(
            points.device
        )
        decoder = F.normalize(drawn, dim=1)
        zeros = torch.zeros(settings.features, device=points.device)
        state = {
            "encoder": decoder,
            "decoder": decoder,
            "pre_bias": torch.zeros_like(center),
            "latent_bias": zeros,
        }
        state |= {
            f"{name}.{key}": torch.zeros_like(state[name]) for name in _NAMES for key in _MOMENTS
        }
        state |= {"center": center, "scale": scale, "idle": zeros, "sums": zeros, "counts": zeros}
        return cls(settings, {**state, "steps": torch.tensor(0)}, points.device)

    def step(self, points: torch.Tensor) -> float:
        """Train on a batch (N, C) of positions; returns the fraction of variance that it leaves
        unexplained.
        """
        decoder = self._parameters["decoder"]
        points = (points - self._center) / self._scale
        main, auxiliary, features = loss(
            points, self._parameters, self._settings.k, self._idle >= self._settings.dead_after
        )
        parameters = list(self._parameters.values())
        gradients = torch.autograd.grad(main + AUXILIARY * auxiliary, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if parameter is decoder:
                    gradient = gradient - (gradient * decoder).sum(1, keepdim=True) * decoder
                parameter.grad = gradient
            self._optimizer.step()
            decoder.copy_(F.normalize(decoder, dim=1))
            active = features.dense(len(decoder))
            self._idle = torch.where((active > 0).any(0), 0.0, self._idle + 1)
            self._sums = _MEMORY * self._sums + active.sum(0)
            self._counts = _MEMORY * self._counts + (active > 0).sum(0)
        self.steps += 1
        return float(main.detach())

    def dead(self) -> int:
        """How many features are dead."""
        return int((self._idle >= self._settings.dead_after).sum())

    @staticmethod
    def state_shapes(settings: TrainingSettings, channels: int) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of a ``state`` of an activation of so many channels."""
        matrix = (settings.features, channels)
        shapes: dict[str, tuple[int, ...]] = {"encoder": matrix, "decoder": matrix}
        shapes |= {"pre_bias": (channels,), "latent_bias": (settings.features,)}
        shapes |= {f"{name}.{key}": shapes[name] for name in _NAMES for key in _MOMENTS}
        shapes |= {"center": (channels,), "scale": (), "steps": ()}
        return shapes | dict.fromkeys(("idle", "sums", "counts"), (settings.features,))

    def state(self) -> dict[str, torch.Tensor]:
        """All that ``Trainer`` needs to go on as if it had not stopped."""
        state = {"center": self._center, "scale": self._scale, "idle": self._idle}
        state |= {"sums": self._sums, "counts": self._counts, "steps": torch.tensor(self.steps)}
        for name, parameter in self._parameters.items():
            moments = self._optimizer.state[parameter]
            state |= {
                name: parameter.detach(),
                **{f"{name}.{key}": moments[key] for key in _MOMENTS},
            }
        return {name: value.to("cpu", copy=True).contiguous() for name, value in state.items()}

    def autoencoder(self, id_: str, about: dict[str, object]) -> SparseAutoencoder:
        """The autoencoder as it is now, in the units of the activation."""
        encoder, decoder, pre_bias, latent_bias = (
            self._parameters[name].detach().clone() for name in _NAMES
        )
        usual = self._scale * self._sums / self._counts.clamp_min(1e-12)
        usual = torch.where(self._counts > 0, usual, 0.0)
        center = self._center + self._scale * pre_bias
        latent_bias = self._scale * latent_bias
        made = SparseAutoencoder(
            id=id_,
            k=self._settings.k,
            encoder=encoder,
            decoder=decoder,
            pre_bias=center,
            latent_bias=latent_bias,
            usual=usual,
            about=about,
        )
        return made.to(torch.device("cpu"))


def explained_variance(autoencoder: SparseAutoencoder, points: torch.Tensor) -> float:
    """``1 - sum |x - x'|^2 / sum |x - mean|^2`` over positions (N, C)."""
    error = (points - autoencoder.reconstruct(points)).double().square().sum()
    return 1 - float(error / (points - points.mean(0)).double().square().sum())


def save(path: Path, identity: Identity, state: Mapping[str, torch.Tensor]) -> None:
    """Write a trainer's state with its chunks and its curve, whole or not at all."""
    save_state(path, _KIND, version=_VERSION, identity=identity, tensors=state)


def read_state(
    path: Path, identity: Identity, settings: TrainingSettings, steps: int
) -> dict[str, torch.Tensor] | None:
    """What ``save`` wrote: ``chunks`` (), ``curve`` (chunks, 3) and a ``Trainer.state``; None where
    there is no file.

    Raises ValueError for a file of another training, of more than ``steps`` steps, or of numbers
    that no training leaves.
    """
    loaded = load_state(path, _KIND, _VERSION, identity)
    if loaded is None:
        return None
    state, _ = loaded
    curve = state.get("curve", torch.zeros(()))
    center = state.get("center", torch.zeros(()))
    if curve.ndim != 2 or center.ndim != 1:
        raise damaged(path.name)
    shapes = Trainer.state_shapes(settings, len(center))
    check_tensors(path.name, state, {**shapes, "chunks": (), "curve": (len(curve), 3)})
    check_length(path.name, int(state["steps"]), steps)
    counted = [state["idle"], state["counts"], *(state[f"{name}.exp_avg_sq"] for name in _NAMES)]
    kept = [state[name] for name in shapes if name != "steps"]
    if (
        not all(value.is_floating_point() for value in kept)
        or any(bool((value < 0).any()) for value in counted)
        or not float(state["scale"]) > 0
        or not 1 <= int(state["chunks"]) == len(curve) <= int(state["steps"])
    ):
        raise damaged(path.name)
    return state
