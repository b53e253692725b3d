"""What Seed Scout ranks images by: the attention to words while they are sampled, or a judge of the
images.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from comfy_extras.nodes_custom_sampler import Noise_RandomNoise

from ..common import prompt_alignment
from ..host.evaluate import timestep_of, untouched
from ..host.hooks import observe, refuse_compiled
from ..host.latent_shapes import split
from ..host.progress import Progress, check_stop
from ..host.text_encoding import read_prompt
from .catalog_unet import catalog
from .recorder import NOT_EVALUATED, Recorder
from .seed_scout import (
    Ranking,
    Scores,
    diversity,
    layout_likeness,
    layout_vectors,
    word_coverage,
)
from .select_ids import ATTENTION_MEAN
from .tap import TapSettings
from .token_heatmap import heat_map
from .token_heatmap_comfy import placed_words

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ClipVisionModel, ModelPatcher, NoiseSource


def decoded_images(
    sample: Callable, vae: VAE, seeds: list[int], batch_size: int, read: Callable | None
) -> torch.Tensor:
    """The images (N, H, W, 3) of seeds, with a preview: ``sample(seeds)`` returns latents, which
    ``read`` sees too. Of a video it is the frame in the middle.
    """
    decoded = []
    progress = Progress(len(seeds))
    for begin in range(0, len(seeds), batch_size):
        check_stop()
        part = seeds[begin : begin + batch_size]
        samples = sample(part)
        if read:
            read(samples)
        frames = vae.decode(split(samples)[0])
        frames = frames.reshape(len(part), -1, *frames.shape[-3:])
        middle = frames[:, frames.shape[1] // 2, :, :, :3]
        decoded.append(middle.clone())  # a view would hold the whole video
        progress.show(begin + len(part), decoded[-1])
    return torch.cat(decoded)


_SEEDLESS = (
    "This noise does not follow a seed: connect Random Noise, alone or through Composition Noise."
)


class SeedsNoise:
    """The NOISE of each seed: a given NOISE with that seed, or stock noise, for a LATENT."""

    def __init__(self, noise: NoiseSource | None, seed: int, latent: dict):
        self._noise = noise or Noise_RandomNoise(seed)
        self._latent = latent
        if not isinstance(getattr(self._noise, "seed", None), int):
            raise ValueError(_SEEDLESS)
        self.first = self._noise.seed
        self._drawn: list[torch.Tensor] = []

    def of(self, seed: int) -> NoiseSource:
        """The NOISE with a seed."""
        return _seeded(self._noise, seed)

    def draw(self, samples: torch.Tensor, seed: int) -> torch.Tensor:
        """Its noise for the latent's tensor, without a trace in the global generators."""
        with untouched():
            drawn = self.of(seed).generate_noise({**self._latent, "samples": samples})
        parts = split(drawn)
        if self._drawn and all(map(torch.equal, self._drawn, parts)):
            raise ValueError(_SEEDLESS)
        self._drawn = parts
        return drawn


def _seeded(noise: NoiseSource, seed: int) -> NoiseSource:
    """A copy with another seed, also of the NOISE that it changes."""
    twin: Any = copy.copy(noise)
    twin.seed = seed
    inner = getattr(noise, "inner", None)
    if inner is not None:
        twin.inner = _seeded(inner, seed)
    return twin


class WordMaps:
    """The words' heat maps (N, frames, H, W) of sampling runs on ``model``, a clone of a MODEL."""

    def __init__(self, model: ModelPatcher, clip: CLIP, prompt: str, words: str):
        if clip is None:
            raise ValueError("word_coverage needs clip: connect the CLIP that encoded the prompt.")
        refuse_compiled(model)
        read_prompt(clip, prompt).find(words)  # raises before anything is sampled
        self._text = clip, prompt, words
        specs = catalog(model.model.diffusion_model)
        if not any(spec.id == ATTENTION_MEAN for spec in specs):
            raise ValueError(
                "The image-to-text attention of this model cannot be read: use another ranking."
            )
        mean = [spec for spec in specs if spec.id == ATTENTION_MEAN]
        settings = TapSettings(dtype=torch.float32)
        self._recorder = Recorder(
            specs=mean,
            settings=settings,
            selects=lambda *_: True,
            timestep_of=lambda sigma: timestep_of(model, sigma),
            mean_only=True,
        )
        self.model = observe(model, self._recorder)
        self._maps: dict[str, torch.Tensor] = {}

    def read(self, samples: torch.Tensor) -> None:
        """Add the maps of the run that ended with these latents, a mean over its steps; those of a
        video are maps of all its frames.
        """
        rows = len(split(samples)[0])
        run = self._recorder.run_of(samples)
        if not run.snapshots or set(run.skipped.values()) - {NOT_EVALUATED}:
            raise ValueError(
                f"The attention to the words could not be read. {run.skipped_report()}"
            )
        recorded = run.average()
        found, length, tokens = placed_words(recorded, *self._text)
        attention = recorded.tensors[ATTENTION_MEAN][:, tokens]
        for word, positions in found.items():
            maps = heat_map(attention, positions, length).unflatten(0, (rows, -1))
            self._maps[word] = torch.cat([self._maps[word], maps]) if word in self._maps else maps

    def scores(self, _images: torch.Tensor) -> Scores:
        """The coverage of all runs that were read."""
        return word_coverage(self._maps)


def image_scorer(
    ranking: str,
    prompt: str,
    reference: torch.Tensor | None,
    clip: CLIP,
    clip_vision: ClipVisionModel,
) -> Callable[[torch.Tensor], Scores]:
    """What scores images (N, H, W, 3); raises ValueError when an input that it needs is not
    connected.
    """
    if ranking == Ranking.PROMPT_ALIGNMENT:
        return lambda images: _alignment(prompt, images, clip, clip_vision)
    if ranking == Ranking.DIVERSITY:
        return _diversity_scorer(clip, clip_vision)
    if reference is None:
        raise ValueError(
            f"{ranking} needs reference: connect the image that the result should be like."
        )
    first = reference[:1]
    if ranking == Ranking.LAYOUT_LIKENESS:
        return lambda images: layout_likeness(images, first)
    own = prompt_alignment.own_embedder(clip)
    if clip_vision is not None:
        return lambda images: _likeness(
            lambda part: clip_vision.encode_image(part)["image_embeds"], images, first
        )
    if own is None:
        raise ValueError("image_likeness needs clip_vision: connect one from Load CLIP Vision.")
    return lambda images: _likeness(own, images, first)


def _diversity_scorer(
    clip: CLIP | None, clip_vision: ClipVisionModel | None
) -> Callable[[torch.Tensor], Scores]:
    """By embeddings of the images where something embeds them, else by layout and colors."""
    if clip_vision is None and prompt_alignment.own_embedder(clip) is None:
        return lambda images: diversity(layout_vectors(images), "layout and colors")
    return lambda images: diversity(prompt_alignment.embed(images, clip, clip_vision), "embeddings")


def _likeness(embed: Callable, images: torch.Tensor, reference: torch.Tensor) -> Scores:
    """Cosine of the embeddings of images (N, H, W, 3) and of a reference (1, h, w, 3)."""
    values = torch.cosine_similarity(embed(images).float(), embed(reference).float(), dim=1)
    return Scores(values.cpu(), "cosine of the embeddings of image and reference")


def _alignment(
    prompt: str, images: torch.Tensor, clip: CLIP, clip_vision: ClipVisionModel
) -> Scores:
    try:
        alignment = prompt_alignment.measure(prompt, images, clip, clip_vision)
    except prompt_alignment.AbsentError as error:
        raise ValueError(f"prompt_alignment cannot be measured: {error}.") from error
    return Scores(alignment.values, alignment.what)
