"""Sampling as one node: what nearly every workflow repeats stands in a subgraph."""

from __future__ import annotations

from .authoring import Output, Workflow


def generate(
    w: Workflow,
    model: Output,
    positive: Output,
    negative: Output,
    latent: Output,
    vae: Output,
    *,
    seed: int,
    steps: int,
    cfg: float,
    sampler: str = "euler",
) -> Output:
    """Images of a KSampler and a VAE Decode, in the subgraph "Generate"."""

    def inside(w: Workflow, vae: Output, **given: Output) -> Output:
        samples = w.add("KSampler", sampler_name=sampler, scheduler="normal", **given)
        return w.add("VAEDecode", samples=samples, vae=vae)

    return w.subgraph(
        "Generate",
        inside,
        model=model,
        positive=positive,
        negative=negative,
        latent_image=latent,
        vae=vae,
        seed=seed,
        steps=steps,
        cfg=cfg,
    )
