"""A network under test, and what the cells of the matrix share on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..common import host
from . import networks, text_encoders
from .networks import Configuration

PROMPT = "a red cat and a blue dog"


class LeftOutError(Exception):
    """A cell that this host cannot try, with the reason."""


class NotVerifiedError(Exception):
    """A node that ran and did not do what it is for."""


class Subject:
    """A reduced network with its text encoder, conditionings and latents, and ways to sample it."""

    def __init__(self, app: Any, base: Path, configuration: Configuration):
        self.app = app
        self.base = base
        self.configuration = configuration
        self.model = networks.model(configuration)
        self.network = self.model.model.diffusion_model
        self.latent = networks.latent(configuration, self.model)
        self.empty = networks.latent(configuration, self.model, seed=None)
        self.vae = networks.StandInVae(configuration, self.model)
        self.side = configuration.size[-1] * self.vae.downscale_ratio
        self.without_clip = ""
        self.clip = self._make_clip()
        if self.clip is None:
            self.positive = networks.conditioning(configuration)
            self.negative = networks.conditioning(configuration, seed=7)
        else:
            self.positive = self.encode(PROMPT)
            self.negative = self.encode("")
        self._kept: dict[str, Any] = {}

    def _make_clip(self):
        try:
            made = text_encoders.clip(self.configuration)
            with torch.inference_mode():
                text = self.app.run("CLIPTextEncode", clip=made, text="a cat")[0]
                self.sample(self.model, positive=text, negative=text)
        except Exception as error:  # what a host lacks shows in any of them
            self.without_clip = f"{type(error).__name__}: {error}"
            return None
        return made

    def encode(self, text: str) -> list:
        """The CONDITIONING of a text."""
        return self.app.run("CLIPTextEncode", clip=self.text_encoder, text=text)[0]

    @property
    def text_encoder(self):
        """The CLIP; raises LeftOutError where this host cannot make it."""
        if self.clip is None:
            raise LeftOutError(
                "ComfyUI's text encoder of this network cannot be made here "
                f"({self.without_clip[:100]})."
            )
        return self.clip

    def run(self, node: str, **inputs: Any) -> tuple:
        """Run a node of the pack by its id without GBX_; inputs that are not named have their
        defaults.
        """
        chosen = self.app.classes[f"GBX_{node}"]
        schema = _schema(chosen)
        values = {**host.default_inputs(chosen), **inputs}
        if getattr(schema, "is_input_list", False):
            values = {name: [value] for name, value in values.items()}
        return self.app.run(f"GBX_{node}", **values)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What several cells need, made by the first of them."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def sample(self, model: Any, latent: dict | None = None, **changes: Any) -> torch.Tensor:
        """What KSampler makes in two steps; parts of a LATENT one behind the other."""
        samples = self.sampled(model, latent, **changes)["samples"]
        if getattr(samples, "is_nested", False):
            return torch.cat([part.flatten() for part in samples.unbind()])
        return samples

    def sampled(self, model: Any, latent: dict | None = None, **changes: Any) -> dict:
        """The same as a LATENT."""
        inputs = {
            "positive": changes.pop("positive", None) or self.positive,
            "negative": changes.pop("negative", None) or self.negative,
            "latent_image": latent or self.empty,
            "seed": 1,
            "steps": 2,
            "cfg": 2.0,
            "sampler_name": "euler",
            "scheduler": "simple",
            "denoise": 1.0,
        }
        return self.app.run("KSampler", model=model, **{**inputs, **changes})[0]

    @functools.cached_property
    def plain(self) -> torch.Tensor:
        """What stock ComfyUI samples."""
        return self.sample(self.model)

    def same(self, model: Any) -> None:
        """Raise NotVerifiedError unless a MODEL samples what stock does, bit for bit."""
        difference = float((self.sample(model) - self.plain).abs().max())
        if difference:
            raise NotVerifiedError(
                f"At its neutral setting the result differs by {difference:.2g}."
            )

    def changed(self, model: Any) -> torch.Tensor:
        """What a MODEL samples; raises NotVerifiedError where it is what stock samples, or not
        finite.
        """
        result = self.sample(model)
        if not bool(torch.isfinite(result).all()):
            raise NotVerifiedError("The result is not finite.")
        if torch.equal(result, self.plain):
            raise NotVerifiedError("The result does not change.")
        return result

    def hook_count(self) -> int:
        """Hooks on the network's modules, of which a node must leave none."""
        modules = self.network.modules()
        return sum(len(item._forward_hooks) + len(item._forward_pre_hooks) for item in modules)


def batch(subject: Subject, count: int) -> dict:
    """Several different latents as a LATENT; one where it has a sound part."""
    if subject.configuration.has_sound:
        return subject.latent
    latents = [
        networks.latent(subject.configuration, subject.model, seed=seed)["samples"]
        for seed in range(2, 2 + count)
    ]
    return {"samples": torch.cat(latents)}


def first_part(samples: Any) -> torch.Tensor:
    """The image or video of a LATENT's samples."""
    return samples.unbind()[0] if getattr(samples, "is_nested", False) else samples


def with_first_part(samples: Any, first: torch.Tensor):
    """Samples of a LATENT with another image or video."""
    if not getattr(samples, "is_nested", False):
        return first
    return type(samples)([first, *samples.unbind()[1:]])


def repeated_twice(samples: Any):
    """Samples of a LATENT, each image and its sound twice."""
    if not getattr(samples, "is_nested", False):
        return torch.cat([samples, samples])
    return type(samples)([torch.cat([part, part]) for part in samples.unbind()])


def relative(result: torch.Tensor, expected: torch.Tensor, against: torch.Tensor) -> float:
    """The largest difference from what is expected, relative to the largest change."""
    change = float((expected - against).abs().max())
    return float((result - expected).abs().max()) / max(change, 1e-30)


def demand(condition: bool, sentence: str) -> None:
    """Raise NotVerifiedError with the sentence unless a condition holds."""
    if not condition:
        raise NotVerifiedError(sentence)


@functools.cache
def _schema(node: Any):
    return node.GET_SCHEMA()
