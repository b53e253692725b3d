"""Cells of the conditioning family: what each node must do on a network."""

from __future__ import annotations

import torch

from . import networks
from .subject import NotVerifiedError, Subject, demand


def higher_resolution(subject: Subject) -> str:
    """At the trained size stock, at twice the size another image."""
    large = networks.latent(subject.configuration, subject.model, scale=2, seed=None)
    model = subject.run(
        "PositionalResample", model=subject.model, base_size=subject.side, latent=large
    )[0]
    stock = subject.sample(subject.model, large)
    demand(not torch.equal(subject.sample(model, large), stock), "A larger image does not change.")
    own = subject.run(
        "PositionalResample", model=subject.model, base_size=subject.side, latent=subject.empty
    )[0]
    subject.same(own)
    return "larger images change, the trained size is bit-equal"


def resolution_noise_rescale(subject: Subject) -> str:
    """At the base size stock; four times the side has the paper's factor."""

    def rescaled(side: int):
        return subject.run(
            "ResolutionNoiseRescale",
            model=subject.model,
            width=side,
            height=side,
            base_width=subject.side,
            base_height=subject.side,
        )[:2]

    subject.same(rescaled(subject.side)[0])
    model, factor = rescaled(4 * subject.side)
    demand(abs(factor - 4) < 1e-6 or abs(factor - 2) < 1e-6, f"The factor is {factor}.")
    subject.changed(model)
    return f"factor {factor:.3g}"


def noisy_replicate_padding(subject: Subject) -> str:
    """Stock is stock; copies repeat the prompt's tokens."""

    def padded(padding: str):
        return subject.run(
            "NoisyReplicatePadding", clip=subject.text_encoder, text="a red cat", padding=padding
        )

    stock = subject.encode("a red cat")[0][0]
    demand(torch.equal(padded("stock")[0][0][0], stock), "Stock padding differs from stock.")
    conditioning, report = padded("copies")
    copies = conditioning[0][0]
    differs = (copies != stock).any(-1)[0].nonzero()
    if not len(differs):
        if "no effect" in report:
            raise ValueError(report.split("\n")[0])
        raise NotVerifiedError(f"Nothing changes: {' '.join(report.split())[:100]}")
    real = int(differs[0])
    count = min(real, copies.shape[1] - real)
    repeats = torch.equal(copies[:, real : real + count], copies[:, :count])
    several = subject.configuration.supported in ("SDXL", "SDXLRefiner", "SD3", "HiDream")
    demand(repeats or several, "The padding holds no copies of the prompt.")
    return "padding holds copies of the prompt"


def metadata_conditioning(subject: Subject) -> str:
    """Another original size gives another image."""
    conditioning = subject.run(
        "MetadataConditioning",
        model=subject.model,
        conditioning=subject.positive,
        original_width=256,
        original_height=128,
    )[0]
    result = subject.sample(subject.model, positive=conditioning)
    demand(not torch.equal(result, subject.plain), "The size changes nothing.")
    return "the size changes the image"


def metadata_guider(subject: Subject) -> str:
    """A guider is made."""
    guider = subject.run(
        "MetadataGuider",
        model=subject.model,
        positive=subject.positive,
        negative=subject.negative,
    )[0]
    demand(hasattr(guider, "sample"), "It is no guider.")
    return "guider"


def metadata_report(subject: Subject) -> str:
    """The report has a line on the text."""
    report = subject.run(
        "MetadataReport",
        model=subject.model,
        positive=subject.positive,
        negative=subject.negative,
        latent=subject.empty,
    )[1]
    demand(bool(report.strip()), "The report is empty.")
    return "reported"


def metadata_schedule(subject: Subject) -> str:
    """The schedule changes the image."""
    scheduled = subject.run("MetadataSchedule", model=subject.model)[0]
    conditioning = subject.run(
        "MetadataConditioning",
        model=subject.model,
        conditioning=subject.positive,
        original_width=64,
        original_height=64,
    )[0]
    result = subject.sample(scheduled, positive=conditioning)
    stock = subject.sample(subject.model, positive=conditioning)
    demand(not torch.equal(result, stock), "The schedule changes nothing.")
    return "the schedule changes the image"


def size_sheet(subject: Subject) -> str:
    """Two values give two images."""
    images = subject.run(
        "SizeSheet",
        model=subject.model,
        positive=subject.positive,
        negative=subject.negative,
        vae=subject.vae,
        latent=subject.empty,
        steps=1,
        values="64, 1024",
    )[1]
    demand(len(images) == 2 and not torch.equal(images[0], images[1]), "The images are the same.")
    return "two images"


CELLS = {
    "PositionalResample": higher_resolution,
    "ResolutionNoiseRescale": resolution_noise_rescale,
    "NoisyReplicatePadding": noisy_replicate_padding,
    "MetadataConditioning": metadata_conditioning,
    "MetadataSchedule": metadata_schedule,
    "MetadataGuider": metadata_guider,
    "MetadataReport": metadata_report,
    "SizeSheet": size_sheet,
}
