"""What nearly every workflow repeats, as one node: prompts and sampling stand in subgraphs."""

from __future__ import annotations

import functools

from tools.launcher.workflow import Kind

from .authoring import Output, Workflow


def encode(
    w: Workflow, clip: Output, text: Output | str, negative: str = ""
) -> tuple[Output, Output]:
    """A prompt and a negative one, encoded, in the subgraph "Prompt"; an empty negative one is not
    shown.
    """

    # Front end 1.32 shows the text of only one of the nodes that stand for the same subgraph.
    others = sum(node.inside is not None and node.type.startswith("Prompt") for node in w.nodes)
    title = f"Prompt {others + 1}" if others else "Prompt"

    def inside(
        w: Workflow, clip: Output, prompt: Output, negative_prompt: Output | str = ""
    ) -> dict[str, Output]:
        return {
            "positive": w.add("CLIPTextEncode", clip=clip, text=prompt, node_title=title),
            "negative": w.add(
                "CLIPTextEncode", clip=clip, text=negative_prompt, node_title="Negative prompt"
            ),
        }

    shown = {"negative_prompt": negative} if negative else {}
    return w.subgraph(title, inside, clip=clip, prompt=text, **shown)


def empty_latent(w: Workflow, side: int, count: int) -> Output:
    """An empty latent of what the workflow's model generates."""
    kind = "EmptySD3LatentImage" if w.name.startswith(("flux", "sd3")) else "EmptyLatentImage"
    return w.add(kind, width=side, height=side, batch_size=count)


def sampler_of(w: Workflow) -> str:
    """euler_ancestral for the demo model, whose early errors it corrects in later steps; euler for
    checkpoints.
    """
    return "euler_ancestral" if w.kind == Kind.DEMO else "euler"


def sample(
    w: Workflow,
    vae: Output,
    *,
    sampler: str = "euler",
    scheduler: str = "normal",
    **given: Output | float,
) -> Output:
    """Images of a KSampler and a VAE Decode; ``given``: the other inputs of the KSampler."""
    samples = w.add("KSampler", sampler_name=sampler, scheduler=scheduler, **given)
    return w.add("VAEDecode", samples=samples, vae=vae)


def sampled_into(
    w: Workflow,
    resized: bool,
    sampler: str = "euler",
    scheduler: str = "normal",
    **given: Output | float,
) -> Output:
    """The masked part of an image sampled again, in a subgraph."""

    def inside(
        w: Workflow, image: Output, mask: Output, latent: Output, vae: Output, **given: Output
    ) -> Output:
        noised = w.add("SetLatentNoiseMask", samples=latent, mask=mask)
        decoded = sample(w, vae, sampler=sampler, scheduler=scheduler, latent_image=noised, **given)
        return w.add(
            "ImageCompositeMasked",
            destination=image,
            source=decoded,
            x=0,
            y=0,
            resize_source=resized,
            mask=mask,
        )

    return w.subgraph("Sample into the image", inside, **given)


def generate(
    w: Workflow,
    model: Output,
    positive: Output,
    negative: Output,
    latent: Output,
    vae: Output,
    *,
    what: str = "",
    sampler: str = "euler",
    **numbers: float,
) -> Output:
    """The same in a subgraph that says ``what`` and shows the ``numbers`` of the KSampler: seed,
    steps, cfg.
    """
    return w.subgraph(
        f"Generate: {what}" if what else "Generate",
        functools.partial(sample, sampler=sampler),
        model=model,
        positive=positive,
        negative=negative,
        latent_image=latent,
        vae=vae,
        **numbers,
    )


def generate_each(
    w: Workflow, positives: dict[str, Output], side: int, count: int, **given: Output | float
) -> tuple[Output, ...]:
    """Images of each prompt on the same noise, in a subgraph."""
    sampler = sampler_of(w)

    def inside(w: Workflow, vae: Output, **given: Output) -> dict[str, Output]:
        prompts = {name: given.pop(name) for name in positives}
        latent = empty_latent(w, side, count)
        return {
            name: sample(w, vae, sampler=sampler, positive=one, latent_image=latent, **given)
            for name, one in prompts.items()
        }

    return w.subgraph("Generate with each", inside, **positives, **given)


def generate_latents(
    w: Workflow, *wires: Output, sampler: str = "euler", **numbers: float
) -> tuple[Output, Output]:
    """The latents and their images, in the subgraph "Sample"; given what `generate` is."""

    def inside(w: Workflow, vae: Output, **given: Output) -> tuple[Output, Output]:
        samples = w.add("KSampler", sampler_name=sampler, scheduler="normal", **given)
        return samples, w.add("VAEDecode", samples=samples, vae=vae)

    names = ("model", "positive", "negative", "latent_image", "vae")
    return w.subgraph("Sample", inside, **dict(zip(names, wires, strict=True)), **numbers)


def train_lora(
    w: Workflow,
    fixed: dict[str, object],
    title: str = "Train a LoRA",
    **given: Output | float | str,
) -> tuple[Output, ...]:
    """A training in a subgraph, which saves the LoRA: losses, loss plot, samples and report.

    ``given``: the inputs that it shows, ``prefix`` of the file among them; ``fixed``: values that
    it does not.
    """

    def inside(w: Workflow, prefix: Output, **given: Output) -> dict[str, Output]:
        _, lora, losses, steps, plot, samples, report, _ = w.add(
            "GBX_TrainLoraImmiscible", **given, **fixed
        )
        w.add("SaveLoRA", lora=lora, prefix=prefix, steps=steps)
        return {"losses": losses, "plot": plot, "samples": samples, "report": report}

    return w.subgraph(title, inside, **given)
