"""W2W Invert on a MODEL: training in its session, with previews, checkpoints and Finish now."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..common.lora_keys import TEXT
from ..common.loss_curve import outline
from ..common.resume import FinishedEarly, Identity, digest, settings_identity
from ..host.compute import request_for_training
from ..host.identity import model_digest
from ..host.lora_targets import changes_in_use, mismatch, name_some, targets
from ..host.precision import Precision
from ..host.progress import FinishNow, LiveCurve, Progress
from ..host.training import trainer
from . import inversion_checkpoint
from .inversion import Inversion, InversionSettings, TrainablePoint, latent_mask, point_bytes
from .space import Point, Space

if TYPE_CHECKING:
    from ..common.training.session import Session
    from ..host.socket_types import ModelPatcher

_PREVIEW_PERCENT = 0.4
_CHECKPOINT_INTERVAL = 50


@dataclass(frozen=True, kw_only=True)
class Images:
    """What is inverted: latents (1, C, ...), their CONDITIONING, the part that counts, and a VAE
    for previews. ``sounds``: the other parts of each LATENT.
    """

    latents: list[torch.Tensor]
    sounds: list[list[torch.Tensor]]
    positive: list
    mask: torch.Tensor | None
    vae: Any


@dataclass(frozen=True, kw_only=True)
class How:
    """How it is computed, shown and kept."""

    precision: Precision
    gradient_checkpointing: bool
    preview_interval: int
    checkpoint: Path | None


def invert(
    patcher: ModelPatcher,
    space: Space,
    settings: InversionSettings,
    images: Images,
    start: torch.Tensor,
    how: How,
) -> tuple[Point, Run]:
    """The point of a space for images, found from the coefficients ``start`` (k,) or fewer, and how
    it went.
    """
    request_for_training(point_bytes(space, settings.components))  # before the space moves
    with torch.inference_mode(False):
        trainable = TrainablePoint(
            space,
            start.clone(),
            settings.components,
            patcher.load_device,
            whitened=settings.prior > 0,
        )
        identity: dict[str, object] = settings_identity(settings)
        if how.checkpoint is not None:
            seen = {"space": space, "latent": images.latents, "positive": images.positive}
            if images.sounds:
                seen["sounds"] = images.sounds
            seen |= {"mask": images.mask, "start_point": start}
            identity |= {"model": model_digest(patcher), "precision": str(how.precision)}
            identity |= {name: digest(value) for name, value in seen.items()}
        inputs = digest([settings, how.preview_interval, how.gradient_checkpointing])
        run = Run(
            inversion=Inversion(model=trainable, settings=settings),
            images=images,
            how=how,
            identity=identity,
            inputs=inputs,
        )
        trainer.run(
            patcher,
            weight_functions(patcher, trainable),
            latents=images.latents,
            conditions=[images.positive] * len(images.latents),
            work=run.train,
            dtype=how.precision.dtype,
            checkpointing=how.gradient_checkpointing,
            seed=settings.seed,
            sounds=images.sounds,
        )
    return Point(space, trainable.all_coefficients(), "inverted"), run


@dataclass
class Run:
    """One execution: training with previews, checkpoints, and Finish now."""

    inversion: Inversion
    images: Images
    how: How
    identity: Identity
    inputs: str
    restored: torch.Tensor | None = None
    seconds: float = 0.0

    def train(self, session: Session) -> None:
        inversion = self.inversion
        checkpoint = self.how.checkpoint
        if checkpoint is not None:
            inversion_checkpoint.restore(inversion, checkpoint, self.identity, self.inputs)
        mask = (
            None if self.images.mask is None else latent_mask(self.images.mask, session.latents[0])
        )
        progress = Progress(inversion.settings.steps)
        live = LiveCurve()
        first = inversion.done
        finish = FinishNow()
        started = time.perf_counter()

        def on_step(done: int) -> None:
            if checkpoint is not None and done % _CHECKPOINT_INTERVAL == 0:
                inversion_checkpoint.save(inversion, checkpoint, self.identity, self.inputs)
            live.show(self.curve)
            preview = self.how.preview_interval and done % self.how.preview_interval == 0
            progress.show(done, self._restore(session) if preview else None)
            finish.check()

        try:
            with finish:
                if not inversion.finished_early:
                    inversion.run(session, mask, on_step)
        except FinishedEarly:
            inversion.finished_early = inversion.done < inversion.settings.steps
        finally:
            self.seconds = (time.perf_counter() - started) / max(inversion.done - first, 1)
            if checkpoint is not None:
                inversion_checkpoint.save(inversion, checkpoint, self.identity, self.inputs)
        inversion.take_best()
        self._restore(session)

    def curve(self) -> dict:
        """The losses as the canvas draws them."""
        return outline(self.inversion.losses, self.inversion.settings.steps)

    def _restore(self, session: Session) -> torch.Tensor | None:
        """The images as the point restores them from noise, decoded; None without a VAE."""
        if self.images.vae is None:
            return None
        latents = torch.cat(session.latents).to(session.device)
        sigmas = torch.full((len(latents),), session.sigma(_PREVIEW_PERCENT), device=session.device)
        noise = torch.randn(
            latents.shape, generator=torch.Generator().manual_seed(self.inversion.settings.seed)
        )
        with torch.no_grad():
            noised = session.noised(latents, noise.to(latents), sigmas)
            answer = session.denoised(noised, sigmas, range(len(latents)))
        with torch.inference_mode():
            images = self.images.vae.decode(session.as_latent(answer))
        self.restored = images.reshape(-1, *images.shape[-3:])
        session.reload()
        return self.restored


def weight_functions(patcher: ModelPatcher, trainable: TrainablePoint) -> dict:
    """A weight function for every weight of the MODEL that the space changes."""
    space = trainable.space
    sizes = {
        name: (up[0], torch.Size(down[1:]).numel())
        for name, (down, up) in space.layout.shapes.items()
    }
    layers = [
        name
        for name in space.layout.unflatten(torch.zeros(space.layout.size))
        if not name.startswith(TEXT)
    ]
    found = targets(patcher.model, {name: space.stems.get(name, "") for name in layers})
    by_weight: dict[str, list] = {}
    left_out = {}
    for name in layers:
        if name not in found or mismatch(found[name], sizes[name]):
            raise ValueError(
                f"The model has no layer {name} of these sizes: the space is made for another base "
                "model."
            )
        if changes_in_use(patcher.model, found[name]):
            by_weight.setdefault(found[name].key, []).append((name, found[name].part))
        else:
            left_out[name] = "its weight cannot change while it is used"
    if left_out:
        logging.warning("W2W Invert leaves out %s.", name_some(left_out))
    return {weight: trainable.weight_function(parts) for weight, parts in by_weight.items()}
