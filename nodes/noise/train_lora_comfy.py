"""Train adapters of a MODEL, and of its CLIP where one is connected, with noise that is paired with
the images.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..common.resume import digest
from ..common.training.session import Session
from ..common.training.training_checkpoint import CheckpointFile
from ..common.training.training_data import TrainingData
from ..common.training.training_run import TrainingRun
from ..host.compute import request_for_training, trained_bytes
from ..host.folders import named_file
from ..host.identity import clip_digest, embedding_digest, model_digest
from ..host.progress import FinishNow, LiveCurve, Progress, Stopped, interruptible, nothing_to_show
from ..host.training import adapters, trainer
from .pairing import PairingSettings
from .training_noise import PairedTrainingOptions, TrainingNoise

if TYPE_CHECKING:
    from ..common.lora_reader import FileParts
    from ..host.socket_types import CLIP, VAE, ModelPatcher


class TrainingMonitor:
    """Shows a run on the canvas: the progress bar, the loss curve, and sample images, each decoded
    once.

    After a step it ends the run where Finish now was pressed.
    """

    def __init__(self, vae: VAE | None, finish: FinishNow):
        self._vae: Any = vae  # None is never decoded with
        self._finish = finish
        self._live = LiveCurve()
        self._progress: Progress | None = None
        self._images: dict[int, torch.Tensor] = {}  # steps done -> IMAGE

    def show(
        self, run: TrainingRun, session: Session, done: int, latents: torch.Tensor | None
    ) -> None:
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

    def all_images(self) -> Any:
        """Everything decoded, oldest first; an output that rests when there is nothing."""
        images = [self._images[done] for done in sorted(self._images)]
        return torch.cat(images) if images else nothing_to_show()


@dataclass(frozen=True)
class Trained:
    """What is trained: the adapters of a MODEL, among whose parameters are those of the text
    encoder, if it has any.
    """

    made: adapters.Adapters
    text: trainer.TextEncoder | None
    text_names: Collection[str]
    remarks: list[str]


def adapters_of(
    model: ModelPatcher,
    clip: CLIP | None,
    options: PairedTrainingOptions,
    data: TrainingData,
    existing: FileParts,
    dtype: torch.dtype,
) -> Trained:
    """The adapters to train, as ``Trained``; ``existing``: a LoRA to continue, ``clip``: None for
    the MODEL alone.
    """
    create = functools.partial(
        adapters.create,
        algorithm=options.algorithm,
        rank=options.rank,
        dtype=dtype,
        seed=options.seed,
        existing=existing,
        alpha=options.alpha,
    )
    made = create(model, layers=options.layers)
    remarks = [made.report]
    text = None
    text_parameters = {}
    if clip is not None:
        added = create(clip.patcher, of_text=True)
        text = trainer.TextEncoder(clip, added.functions, data.captions)
        text_parameters = added.parameters
        remarks.append(added.report)
    elif existing.text:
        remarks.append(
            f"Its {len(existing.text)} text encoder layers are left out: connect clip and captions."
        )
    whole = adapters.Adapters(made.functions, {**made.parameters, **text_parameters})
    return Trained(whole, text, text_parameters.keys(), remarks)


def checkpoint_of(
    model: ModelPatcher,
    clip: CLIP | None,
    options: PairedTrainingOptions,
    data: TrainingData,
    existing: FileParts,
) -> CheckpointFile | None:
    """The file that a run is resumed from, by all that it depends on; None without a name."""
    name = options.checkpoint_name.strip()
    if not name:
        return None
    identity = options.identity(data) | {"existing_lora": digest(existing)}
    identity |= {"model": model_digest(model), "clip": clip_digest(clip)}
    if clip is not None:
        identity["embedding"] = embedding_digest(clip, data.captions.values())
    sampling = options.sampling(data)
    inputs = digest([asdict(options), sampling])
    return CheckpointFile(
        path=named_file(name, ".safetensors"), identity=identity, sampling=sampling, inputs=inputs
    )


def train(
    model: ModelPatcher,
    vae: VAE | None,
    trained: Trained,
    options: PairedTrainingOptions,
    data: TrainingData,
    checkpoint: CheckpointFile | None,
    dtype: torch.dtype,
) -> tuple[TrainingRun, TrainingMonitor]:
    """Train to the last step or to Finish now: the run, and what has its sample images. ``vae``
    None: no images.
    """
    finish = FinishNow()
    settings = PairingSettings.of(options)
    monitor = TrainingMonitor(vae, finish)
    run = TrainingRun(
        options=options,
        data=data,
        parameters=trained.made.parameters,
        monitor=monitor,
        interrupt=Stopped,
        call=interruptible,
        with_samples=vae is not None,
        checkpoint=checkpoint,
        text=trained.text_names,
        pairing=lambda images, device: TrainingNoise(settings, images, options.seed, device),
    )
    request_for_training(trained_bytes(trained.made.parameters.values()))
    with finish:
        trainer.run(
            model,
            trained.made.functions,
            latents=data.latents,
            conditions=data.conditions,
            work=run.train,
            dtype=dtype,
            checkpointing=options.gradient_checkpointing,
            checkpoint_depth=options.checkpoint_depth,
            text=trained.text,
            seed=options.seed,
            sounds=data.sounds,
        )
    return run, monitor
