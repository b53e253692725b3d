"""Train adapters of a MODEL, and of its CLIP where one is connected, with noise that is paired with the images."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass

import torch

from ..common.resume import digest
from ..common.training.session import Session
from ..common.training.training_checkpoint import CheckpointFile
from ..common.training.training_data import TrainingData
from ..common.training.training_run import TrainingRun
from ..host.folders import named_file
from ..host.identity import clip_digest, model_digest
from ..host.progress import FinishNow, LiveCurve, Progress, Stopped, interruptible, nothing_to_show
from ..host.training import adapters, trainer
from .pairing import PairingSettings
from .training_noise import PairedTrainingOptions, TrainingNoise


class TrainingMonitor:
    """Shows a run on the canvas: the progress bar, the loss curve, and sample images, each decoded once.

    After a step it ends the run where Finish now was pressed.
    """

    def __init__(self, vae, finish: FinishNow):
        self._vae, self._finish, self._live = vae, finish, LiveCurve()
        self._progress: Progress | None = None
        self._images: dict[int, torch.Tensor] = {}  # steps done -> IMAGE

    def show(self, run: TrainingRun, session: Session, done: int, latents: torch.Tensor | None) -> None:
        """See `training_run.Monitor`."""
        self._progress = self._progress or Progress(run.training.plan.steps)
        self._live.show(run.curve)
        self._progress.show(done, None if latents is None else self.decode(session, done, latents))
        if done:
            self._finish.check()

    def decode(self, session: Session, done: int, latents: torch.Tensor) -> torch.Tensor:
        """See `training_run.Monitor`."""
        if done not in self._images:
            with torch.inference_mode():
                images = self._vae.decode(session.as_latent(latents))
            self._images[done] = images.reshape(-1, *images.shape[-3:])
            session.reload()
        return self._images[done]

    def all_images(self):
        """Everything decoded, oldest first; an output that rests when there is nothing."""
        images = [self._images[done] for done in sorted(self._images)]
        return torch.cat(images) if images else nothing_to_show()


@dataclass(frozen=True)
class Trained:
    """What is trained: the adapters of a MODEL, among whose parameters are those of the text encoder, if it has any."""

    made: adapters.Adapters
    text: trainer.TextEncoder | None
    text_names: Collection[str]
    remarks: list[str]


def adapters_of(model, clip, options: PairedTrainingOptions, data: TrainingData, existing, dtype: torch.dtype):
    """The adapters to train, as ``Trained``; ``existing``: a LoRA to continue, ``clip``: None for the MODEL alone."""
    how = (options.algorithm, options.rank, dtype, options.seed, existing, options.alpha)
    made = adapters.create(model, *how, options.layers)
    remarks, text, text_parameters = [made.report], None, {}
    if clip is not None:
        added = adapters.create(clip.patcher, *how, of_text=True)
        text, text_parameters = trainer.TextEncoder(clip, added.functions, data.captions), added.parameters
        remarks.append(added.report)
    elif existing.text:
        remarks.append(f"Its {len(existing.text)} text encoder layers are left out: connect clip and captions.")
    whole = adapters.Adapters(made.functions, {**made.parameters, **text_parameters})
    return Trained(whole, text, text_parameters.keys(), remarks)


def checkpoint_of(model, clip, options: PairedTrainingOptions, data: TrainingData, existing) -> CheckpointFile | None:
    """The file that a run is resumed from, by all that it depends on; None without a name."""
    name = options.checkpoint_name.strip()
    if not name:
        return None
    identity = options.identity(data) | {"existing_lora": digest(existing)}
    identity |= {"model": model_digest(model), "clip": clip_digest(clip)}
    sampling = options.sampling(data)
    inputs = digest([asdict(options), sampling])
    return CheckpointFile(named_file(name, ".safetensors"), identity, sampling, inputs)


def train(
    model,
    vae,
    trained: Trained,
    options: PairedTrainingOptions,
    data: TrainingData,
    checkpoint: CheckpointFile | None,
    dtype: torch.dtype,
) -> tuple[TrainingRun, TrainingMonitor]:
    """Train to the last step or to Finish now: the run, and what has its sample images. ``vae`` None: no images."""
    finish, settings = FinishNow(), PairingSettings.of(options)
    monitor = TrainingMonitor(vae, finish)
    run = TrainingRun(
        options,
        data,
        trained.made.parameters,
        monitor,
        Stopped,
        interruptible,
        with_samples=vae is not None,
        checkpoint=checkpoint,
        text=trained.text_names,
        pairing=lambda images, device: TrainingNoise(settings, images, options.seed, device),
    )
    with finish:
        trainer.run(
            model,
            trained.made.functions,
            data.latents,
            data.conditions,
            run.train,
            dtype=dtype,
            checkpointing=options.gradient_checkpointing,
            checkpoint_depth=options.checkpoint_depth,
            text=trained.text,
            seed=options.seed,
        )
    return run, monitor
