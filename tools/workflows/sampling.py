"""What nearly every workflow repeats, as one node: prompts and sampling stand in subgraphs."""

from __future__ import annotations

import functools

from .authoring import Output, Workflow


def encode(w: Workflow, clip: Output, text: Output | str, negative: str = "") -> tuple[Output, Output]:
    """A prompt and a negative one, encoded, in the subgraph "Prompt"; an empty negative one is not shown."""

    # Front end 1.32 shows the text of only one of the nodes that stand for the same subgraph.
    others = sum(node.inside is not None and node.type.startswith("Prompt") for node in w.nodes)
    title = f"Prompt {others + 1}" if others else "Prompt"

    def inside(w: Workflow, clip: Output, prompt: Output, negative_prompt: Output | str = "") -> dict[str, Output]:
        return {
            "positive": w.add("CLIPTextEncode", clip=clip, text=prompt, node_title=title),
            "negative": w.add("CLIPTextEncode", clip=clip, text=negative_prompt, node_title="Negative prompt"),
        }

    shown = {"negative_prompt": negative} if negative else {}
    return w.subgraph(title, inside, clip=clip, prompt=text, **shown)


def sampler_of(w: Workflow) -> str:
    """euler_ancestral for the demo model, whose early errors it corrects in later steps; euler for checkpoints."""
    return "euler_ancestral" if w.name.startswith("demo") else "euler"


def sample(
    w: Workflow, vae: Output, *, sampler: str = "euler", scheduler: str = "normal", **given: Output | float
) -> Output:
    """Images of a KSampler and a VAE Decode; ``given``: the other inputs of the KSampler."""
    samples = w.add("KSampler", sampler_name=sampler, scheduler=scheduler, **given)
    return w.add("VAEDecode", samples=samples, vae=vae)


def generate(
    w: Workflow,
    model: Output,
    positive: Output,
    negative: Output,
    latent: Output,
    vae: Output,
    *,
    sampler: str = "euler",
    **numbers: float,
) -> Output:
    """The same in the subgraph "Generate", which shows the ``numbers`` of the KSampler: seed, steps, cfg."""
    return w.subgraph(
        "Generate",
        functools.partial(sample, sampler=sampler),
        model=model,
        positive=positive,
        negative=negative,
        latent_image=latent,
        vae=vae,
        **numbers,
    )


def train_lora(w: Workflow, fixed: dict[str, object], **given: Output | float | str) -> tuple[Output, ...]:
    """A training in the subgraph "Train a LoRA": LoRA, losses, steps, loss plot, samples and report.

    ``given``: the inputs that it shows, ``fixed``: values that it does not.
    """

    def inside(w: Workflow, **given: Output) -> dict[str, Output]:
        _, lora, losses, steps, plot, samples, report, _ = w.add("GBX_TrainLoraImmiscible", **given, **fixed)
        return {"lora": lora, "losses": losses, "steps": steps, "plot": plot, "samples": samples, "report": report}

    return w.subgraph("Train a LoRA", inside, **given)
