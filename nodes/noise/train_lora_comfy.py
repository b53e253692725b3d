"""Train adapters of a MODEL, and of its CLIP where one is connected, with noise that is paired with the images."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass

import torch

from ..common.resume import digest
from ..common.training.training_checkpoint import CheckpointFile
from ..common.training.training_data import TrainingData
from ..common.training.training_run import TrainingRun
from ..host.folders import named_file
from ..host.identity import clip_digest, model_digest
from ..host.progress import FinishNow, Stopped, interruptible
from ..host.training import adapters, trainer
from ..host.training.monitor import TrainingMonitor
from .pairing import PairingSettings
from .training_noise import PairedTrainingOptions, TrainingNoise


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
