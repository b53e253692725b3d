"""Train Slider on a MODEL: what it is trained on, the layers that it changes, the training in the
MODEL's session, and the LoRAs that come out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..common import resume
from ..common.lora_keys import canonical
from ..common.training.training_data import position_weights
from ..common.training.training_evaluation import PreviewSampler
from ..common.training.training_loss import PairObjective
from ..host import lora_targets
from ..host.attention.attention_modules import attention_layers, is_linear
from ..host.compute import request_for_training
from ..host.evaluate import sample_each
from ..host.identity import model_digest
from ..host.latent_shapes import batched, join, matching_channels, split
from ..host.text_encoding import encode
from ..host.training import trainer
from . import learned_space_comfy, lora_writer
from .monitored_run_comfy import MonitoredRun, Monitoring, decoded
from .slider_phrases import SliderPhrases, prompt_of, prompts_of
from .slider_training import (
    Concept,
    PairData,
    PhraseData,
    SliderFactors,
    SliderSettings,
    SliderTraining,
)
from .space_sliders import SpaceSliders, direction_names, training_points

if TYPE_CHECKING:
    from ..common.training.session import Session
    from ..host.socket_types import CLIP, VAE, ModelPatcher
    from .space import Direction, Space


_PREVIEWED = (-1.0, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class OwnImages:
    """How the MODEL generates the images that a slider from phrases is trained on: so many, with
    the size of ``latent``. The previews take the same steps and CFG.
    """

    count: int
    steps: int
    cfg: float
    seed: int
    latent: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class SliderData:
    """What a training sees: CONDITIONINGs, the last of an empty prompt, and what belongs to what.

    ``latents``: the images; None where the MODEL generates them (``own``). ``sounds``: for each
    image the other parts of its LATENT (video with sound), which are evaluated with it. ``space``:
    the learned space whose points the sliders move; None for sliders of the MODEL itself.
    """

    sliders: list[SliderPhrases]
    conditions: list[list]
    latents: list[torch.Tensor] | None
    sounds: list[list[torch.Tensor]]
    data: PhraseData | PairData
    own: OwnImages
    space: Space | None = None

    @property
    def empty(self) -> int:
        """The condition of an empty prompt."""
        return len(self.conditions) - 1


def from_phrases(
    clip: CLIP,
    sliders: list[SliderPhrases],
    base_prompts: list[str],
    preserved: list[str],
    own: OwnImages,
    space: Space | None = None,
) -> SliderData:
    """The data of sliders from phrases; images in the latent are trained on, else the MODEL's own,
    or in a ``space`` those of its points.

    Raises ValueError without a latent.
    """
    if own.latent is None:
        raise ValueError(
            "There is no latent: connect an empty one of the size of your images, or before and "
            "after."
        )
    latents = None
    sounds: list[list[torch.Tensor]] = []
    if torch.count_nonzero(split(own.latent)[0]):
        latents, sounds = _images_and_sounds(own.latent)
    concepts = preserved or [""]
    if latents is not None:
        # Every base prompt is trained on: with fewer images than prompts each image has several.
        count = max(len(latents), len(base_prompts))
        latents = [latents[number % len(latents)] for number in range(count)]
        sounds = [sounds[number % len(sounds)] for number in range(count)] if sounds else sounds
    texts = prompts_of(base_prompts, sliders, concepts)
    conditions = [encode(clip, text)[1] for text in [*texts, ""]]

    def of(base: str, phrase: str) -> list[int]:
        return [texts.index(prompt_of(base, concept, phrase)) for concept in concepts]

    data = PhraseData(
        scenes=[
            number % len(base_prompts)
            for number in range(own.count if latents is None else len(latents))
        ],
        neutral=[texts.index(prompt_of(base)) for base in base_prompts],
        concepts=[
            Concept(
                increase=[of(base, slider.increase) for base in base_prompts],
                decrease=[of(base, slider.decrease) for base in base_prompts],
            )
            for slider in sliders
        ],
        kinds=list(map(learned_space_comfy.kind_of, conditions)),
    )
    return SliderData(
        sliders=sliders,
        conditions=conditions,
        latents=latents,
        sounds=sounds,
        data=data,
        own=own,
        space=space,
    )


def _images_and_sounds(
    samples: torch.Tensor,
) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """The images or videos (1, C, ...) of a LATENT's samples, and for each the other parts."""
    images, *others = (part.split(1) for part in split(samples))
    return list(images), [list(sound) for sound in zip(*others, strict=True)]


def from_pairs(
    clip: CLIP,
    vae: VAE | None,
    slider: SliderPhrases,
    base_prompts: list[str],
    images: tuple[torch.Tensor, torch.Tensor],
    masks: torch.Tensor | None,
    objective: PairObjective,
    own: OwnImages,
) -> SliderData:
    """The data of a slider from images before and after.

    Raises ValueError for images that are no pairs, other numbers of prompts or masks, and without a
    VAE.
    """
    before, after = images
    if before.shape != after.shape:
        raise ValueError(
            f"before holds {len(before)} images of {before.shape[2]} x {before.shape[1]} pixels "
            f"and after {len(after)} of {after.shape[2]} x {after.shape[1]}: give pairs of one "
            "size in the same order."
        )
    if vae is None:
        raise ValueError("Pairs of images need a VAE: connect one to vae.")
    count = len(before)
    if len(base_prompts) not in (1, count):
        raise ValueError(
            f"There are {count} pairs and {len(base_prompts)} base prompts: write one for all, or "
            "one per pair."
        )
    latents = []
    for batch in images:
        for image in batch[..., :3].split(1):
            latents.append(vae.encode(image))
    texts = [*map(prompt_of, base_prompts), ""]
    conditions = [encode(clip, text)[1] for text in texts]
    data = PairData(
        images=count,
        neutral=list(range(count)) if len(base_prompts) > 1 else [0] * count,
        kinds=list(map(learned_space_comfy.kind_of, conditions)),
        objective=objective,
        weights=None if masks is None else position_weights(latents[:count], [masks]),
    )
    return SliderData(
        sliders=[slider],
        conditions=conditions,
        latents=latents,
        sounds=[],
        data=data,
        own=own,
    )


def trained_layers(patcher: ModelPatcher, words: str) -> dict[str, nn.Linear]:
    """The linear layers that are trained, by their names in LoRA files.

    ``words``: comma-separated; every layer with one of them in its name. Empty: those of attention.
    Raises ValueError where a MODEL has none.
    """
    requested = [word.strip() for word in words.split(",") if word.strip()]
    attention = set() if requested else attention_layers(patcher.model.diffusion_model)
    found: dict[str, nn.Linear] = {}
    for name, layer in trainer.trainable_layers(patcher).items():
        _, network, path = name.partition("diffusion_model.")
        if not network or not is_linear(layer):
            continue
        if path in attention or any(word in name for word in requested):
            found[canonical(name)] = layer
    if not found:
        raise ValueError(
            f"No linear layer of this MODEL has a name with one of {', '.join(requested)}: choose "
            "other layers."
            if requested
            else (
                "The attention layers of this MODEL are not known: name layers, such as to_q, to_v."
            )
        )
    return found


@dataclass(kw_only=True)
class SliderRun(MonitoredRun):
    """One execution of Train Slider; ``left``: the fraction of each slider's error that is left."""

    KIND = "slider training", 1

    training: SliderTraining
    source: SliderData
    vae: Any
    left: list[float] = dataclasses.field(default_factory=list)

    def measure(self, session: Session) -> None:
        """How much of each slider's error is left."""
        self.left = self.training.error_left(session)

    def sample(self, session: Session) -> torch.Tensor | None:
        """Each slider at -1, 0 and 1 from the same noise, decoded."""
        if self.vae is None:
            return None
        own = self.source.own
        shape = session.latents[0].shape[1:]
        together = session.rows_at_once(len(_PREVIEWED), shape, gradients=False)
        latents = []
        for slider in range(len(self.source.sliders)):
            for first in range(0, len(_PREVIEWED), together):
                strengths = _PREVIEWED[first : first + together]
                sampler = PreviewSampler(
                    rows=[self.source.data.neutral[0]] * len(strengths),
                    negative=self.source.empty if own.cfg > 1 else None,
                    cfg=own.cfg,
                    steps=own.steps,
                    seed=own.seed,
                    same_noise=True,
                )
                self.training.factors.select(
                    [slider] * len(strengths), strengths, [0] * len(strengths)
                )
                latents.append(sampler.sample(session))
        return decoded(self.vae, session, torch.cat(latents))


def train(
    patcher: ModelPatcher,
    vae: VAE | None,
    source: SliderData,
    *,
    layers: str,
    rank: int,
    settings: SliderSettings,
    monitoring: Monitoring,
) -> tuple[list[dict[str, torch.Tensor]], SliderRun]:
    """Train sliders on a MODEL: a LORA_MODEL of each, and how the training went."""
    count = len(source.sliders)
    space = source.space
    if space is None:
        changed = trained_layers(patcher, layers)
        layout, _ = learned_space_comfy.layout_of(patcher, changed, rank)
        request_for_training(SliderFactors.training_bytes(layout, count))
    else:
        changed = learned_space_comfy.layers_of_space(patcher, space)
        layout = space.layout
        request_for_training(SpaceSliders.training_bytes(space, count))
    images = source.data.images
    factors: SliderFactors | SpaceSliders
    with torch.inference_mode(False):
        if space is None:
            factors = SliderFactors(layout, count, settings.seed % 2**63, patcher.load_device)
        else:
            points = training_points(space, settings.seed % 2**63, images)
            factors = SpaceSliders(space, points, count, patcher.load_device)
        run = SliderRun(
            training=SliderTraining(factors, source.data, settings),
            monitoring=monitoring,
            source=source,
            vae=vae,
        )
        loaded = {}
        if monitoring.checkpoint is not None:
            run.inputs = resume.digest([settings, dataclasses.replace(monitoring, checkpoint=None)])
            loaded = run.resume(
                _identity(patcher, source, settings, monitoring=monitoring, layers=layout.to_json())
            )
    latents = source.latents
    sounds = source.sounds
    if latents is None:
        with learned_space_comfy.changed(changed, factors):
            generated = _resumed_images(patcher, source, loaded, monitoring, factors=factors)
        run.further = _kept(generated)
        latents, sounds = _images_and_sounds(generated)
    with torch.inference_mode(False):
        with learned_space_comfy.changed(changed, factors):
            trainer.run(
                patcher,
                {},
                latents=latents,
                conditions=source.conditions,
                work=run.train,
                dtype=monitoring.precision.dtype,
                checkpointing=monitoring.gradient_checkpointing,
                seed=settings.seed,
                sounds=sounds,
            )
        return [_lora(patcher, factors, number) for number in range(count)], run


def directions_of(run: SliderRun) -> dict[str, Direction]:
    """The sliders of a training inside a space, as its directions."""
    factors = run.training.factors
    assert isinstance(factors, SpaceSliders)
    names = direction_names(run.source.sliders)
    return {name: factors.direction(number, run.left[number]) for number, name in enumerate(names)}


def _identity(
    patcher: ModelPatcher,
    source: SliderData,
    settings: SliderSettings,
    monitoring: Monitoring,
    layers: str,
) -> dict[str, object]:
    """All that a step computes with, by the names of the node's inputs."""
    phrases = [source.conditions[: source.empty], source.data]
    identity = resume.settings_identity(settings)
    if source.space is not None:
        identity["space"] = resume.digest(source.space)
    identity |= {"model": model_digest(patcher), "precision": str(monitoring.precision)}
    identity |= {"layers": layers, "phrases": resume.digest(phrases)}
    if source.sounds:
        identity["sound"] = resume.digest(source.sounds)
    if source.latents is not None:
        return {**identity, "images": resume.digest(source.latents)}
    own = source.own
    assert own.latent is not None
    shape, *others = [part.shape[1:] for part in split(own.latent)]
    if others:
        identity["sound"] = list(map(list, others))
    return {
        **identity,
        "latent": list(shape),
        "images": own.count,
        "sampling_steps": own.steps,
        "cfg": own.cfg,
    }


def _resumed_images(
    patcher: ModelPatcher,
    source: SliderData,
    loaded: dict[str, torch.Tensor],
    monitoring: Monitoring,
    factors: SliderFactors | SpaceSliders,
) -> torch.Tensor:
    """The images that the MODEL has generated, as samples: those of the checkpoint, or new ones.

    In a space each is an image of its point, sampled by itself.
    """
    own = source.own
    assert own.latent is not None
    empty = join([torch.zeros_like(part[:1]) for part in split(own.latent)], like=own.latent)
    empty = matching_channels(empty, patcher)
    if loaded:
        expected = {name: (own.count, *part.shape[1:]) for name, part in _kept(empty).items()}
        if {name: tuple(loaded[name].shape) for name in expected if name in loaded} != expected:
            assert monitoring.checkpoint is not None
            raise resume.damaged(monitoring.checkpoint.name)
        return join([loaded[name] for name in expected])
    data = source.data
    assert isinstance(data, PhraseData)
    positive = [source.conditions[data.neutral[scene]] for scene in data.scenes]
    seeds = [(own.seed + number) % 2**64 for number in range(own.count)]
    every = list(range(own.count))
    groups = [every] if source.space is None else [[number] for number in every]
    sampled: list[torch.Tensor] = []
    for group in groups:
        factors.off(group)
        sampled += sample_each(
            patcher,
            [positive[number] for number in group],
            {"samples": empty},
            [seeds[number] for number in group],
            steps=own.steps,
            negative=source.conditions[source.empty] if own.cfg > 1 else None,
            cfg=own.cfg,
        )
    return batched(sampled)


def _kept(images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Generated images by their names in a checkpoint."""
    video, *others = split(images)
    return {"images": video} | {f"sound {number}": part for number, part in enumerate(others, 1)}


def _lora(
    patcher: ModelPatcher, factors: SliderFactors | SpaceSliders, slider: int
) -> dict[str, torch.Tensor]:
    """A slider as LORA_MODEL, its layers named as the MODEL's loaders expect."""
    layers = factors.layers(slider)
    fit = lora_targets.fit(patcher, lora_targets.sizes_of(layers), {})
    return lora_writer.to_tensors(layers, fit.stems)
