"""The subgraph blueprints: one node a family that an artist drops on a canvas, made of the family's
nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tools.launcher.workflow import Kind

from .authoring import Node, Output, Workflow
from .neuron_world import ORDINARY, SUSPECT


def _edit(w: Workflow, model, space_name, seed, edits) -> Output:
    space, _ = w.add("GBX_W2WLoadSpace", space_name=space_name)
    space, _ = w.add("GBX_W2WFitDirections", space=space)
    point, *_ = w.add("GBX_W2WSample", space=space, seed=seed)
    edited, _ = w.add("GBX_W2WEdit", point=point, edits=edits)
    return w.add("GBX_W2WApply", model=model, point=edited)[0]


def _words(
    w: Workflow, model, clip, vae, latent_image, prompt, negative_prompt, words, seed, steps, cfg
):
    recorded, recording = w.add(
        "GBX_ActivationRecorder",
        model=model,
        preset="cross_attention",
        recorded_steps="all",
        mean_only=True,
    )
    samples = w.add(
        "KSampler",
        model=recorded,
        positive=w.add("CLIPTextEncode", clip=clip, text=prompt),
        negative=w.add("CLIPTextEncode", clip=clip, text=negative_prompt),
        latent_image=latent_image,
        seed=seed,
        steps=steps,
        cfg=cfg,
    )
    image = w.add("VAEDecode", samples=samples, vae=vae)
    activations, _, _ = w.add("GBX_ReadActivations", recording=recording, latent=samples)
    maps, _, _ = w.add(
        "GBX_TokenHeatMap",
        activations=activations,
        image=image,
        clip=clip,
        prompt=prompt,
        words=words,
    )
    return image, maps


def _size(
    w: Workflow, model, conditioning, original_width, original_height, steps
) -> tuple[Output, ...]:
    sized, _ = w.add(
        "GBX_MetadataConditioning",
        model=model,
        conditioning=conditioning,
        original_width=original_width,
        original_height=original_height,
    )
    sigmas = w.add("BasicScheduler", model=model, scheduler="normal", steps=steps)
    gated, _, _ = w.add("GBX_MetadataSchedule", model=model, sigmas=sigmas)
    return gated, sized


def _compose(
    w: Workflow, model, positive, negative, vae, guide, latent_image, seed, strength, steps, cfg
) -> Output:
    encoded = w.add("VAEEncode", pixels=guide, vae=vae)
    _, composed, seed, _, _ = w.add(
        "GBX_CompositionNoise",
        latent=latent_image,
        guide=encoded,
        model=model,
        seed=seed,
        strength=strength,
    )
    samples = w.add(
        "KSampler",
        model=model,
        positive=positive,
        negative=negative,
        latent_image=composed,
        seed=seed,
        steps=steps,
        cfg=cfg,
    )
    return w.add("VAEDecode", samples=samples, vae=vae)


def _change(
    w: Workflow, model, clip, vae, image, prompt, negative_prompt, word_edits, seed, steps, cfg
) -> Output:
    positive = w.add("CLIPTextEncode", clip=clip, text=prompt)
    schedule = {"steps": steps, "scheduler": "normal", "denoise": 0.6}
    start, seed, _, _ = w.add(
        "GBX_ImageToNoise",
        model=model,
        positive=positive,
        latent=w.add("VAEEncode", pixels=image, vae=vae),
        seed=seed,
        **schedule,
    )
    edited, _ = w.add("GBX_EditByWords", model=model, clip=clip, edits=word_edits, prompt=prompt)
    samples = w.add(
        "KSampler",
        model=edited,
        positive=positive,
        negative=w.add("CLIPTextEncode", clip=clip, text=negative_prompt),
        latent_image=start,
        seed=seed,
        cfg=cfg,
        sampler_name="euler",
        **schedule,
    )
    return w.add("VAEDecode", samples=samples, vae=vae)


def _find(w: Workflow, model, clip, prompts, ordinary_prompts, width, height, time_budget):
    given = {"model": model, "clip": clip}
    size = {"width": width, "height": height}
    statistics, _, _ = w.add("GBX_NeuronStatistics", **given, prompts=ordinary_prompts)
    threshold, *_ = w.add("GBX_CalibrateThreshold", **given, prompts=ordinary_prompts, **size)
    mask, figure, *_ = w.add(
        "GBX_NemoLocalize",
        **given,
        statistics=statistics,
        prompts=prompts,
        threshold=threshold,
        time_budget=time_budget,
        **size,
    )
    return w.add("GBX_NemoNeuronMask", model=model, mask=mask), mask, figure


def _train(
    w: Workflow,
    model,
    clip,
    vae,
    latent_image,
    increase,
    decrease,
    base_prompt,
    keep,
    steps,
    learning_rate,
    sampling_steps,
    cfg,
) -> dict[str, Output]:
    trained, lora, file, previews, *_ = w.add(
        "GBX_TrainSlider",
        model=model,
        clip=clip,
        vae=vae,
        latent=latent_image,
        increase=increase,
        decrease=decrease,
        base_prompt=base_prompt,
        keep=keep,
        steps=steps,
        learning_rate=learning_rate,
        sampling_steps=sampling_steps,
        cfg=cfg,
    )
    return {"model": trained, "lora": lora, "file": file, "previews": previews}


@dataclass(frozen=True)
class Blueprint:
    """What a subgraph says of itself, its nodes, its sockets by type, and the values of the widgets
    that it shows.
    """

    about: str
    inside: Callable[..., Output | tuple[Output, ...]]
    sockets: dict[str, str]
    values: dict[str, object]

    def describe(self, w: Workflow) -> None:
        """The workflow of a blueprint's file: its node alone, with open sockets."""
        ends = Node(0, "", {"output": list(self.sockets.values())}, 0).outputs
        w.extra["BlueprintDescription"] = self.about
        w.named_kind = Kind.BLUEPRINT
        w.group("")
        w.subgraph(w.name, self.inside, **dict(zip(self.sockets, ends, strict=True)), **self.values)
        w.nodes[0].sources.clear()
        w.groups.clear()
        w.nodes[0].group = 0


#: By its name, which is that of its file and of its node.
BLUEPRINTS = {
    "W2W sample and edit": Blueprint(
        "A point of a weight space, moved along named directions, as a model: weights2weights, "
        "arXiv 2406.09413.",
        _edit,
        {"model": "MODEL"},
        {"space_name": "avatars-v2-w2w.safetensors", "seed": 1, "edits": "PC 1: 1"},
    ),
    "Generate with word heat maps": Blueprint(
        "Generates images and shows where each word of the prompt acts: DAAM, arXiv 2210.04885.",
        _words,
        {"model": "MODEL", "clip": "CLIP", "vae": "VAE", "latent_image": "LATENT"},
        {
            "prompt": "a red bicycle on a beach",
            "negative_prompt": "",
            "words": "bicycle, beach",
            "seed": 7,
            "steps": 20,
            "cfg": 7.0,
        },
    ),
    "Original size, gated": Blueprint(
        "Size metadata that acts late, when the content is settled: arXiv 2411.03177.",
        _size,
        {"model": "MODEL", "conditioning": "CONDITIONING"},
        {"original_width": 512, "original_height": 512, "steps": 20},
    ),
    "Compose by an image": Blueprint(
        "Noise whose low frequencies follow an image, so that the layout does, without a "
        "ControlNet.",
        _compose,
        {
            "model": "MODEL",
            "positive": "CONDITIONING",
            "negative": "CONDITIONING",
            "vae": "VAE",
            "guide": "IMAGE",
            "latent_image": "LATENT",
        },
        {"seed": 21, "strength": 0.8, "steps": 20, "cfg": 7.0},
    ),
    "Change a word in an image": Blueprint(
        "Changes what a word of the prompt names in an existing image, from the image's own noise.",
        _change,
        {"model": "MODEL", "clip": "CLIP", "vae": "VAE", "image": "IMAGE"},
        {
            "prompt": "a photo of a woman with brown hair",
            "negative_prompt": "",
            "word_edits": "brown hair -> red hair: 2",
            "seed": 0,
            "steps": 20,
            "cfg": 6.0,
        },
    ),
    "Find and mask memorization neurons": Blueprint(
        "Finds the neurons that memorize a prompt and returns the model without them: NeMo, arXiv "
        "2406.02366.",
        _find,
        {"model": "MODEL", "clip": "CLIP"},
        {
            "prompts": SUSPECT,
            "ordinary_prompts": ORDINARY,
            "width": 512,
            "height": 512,
            "time_budget": 600.0,
        },
    ),
    "Train a slider from two phrases": Blueprint(
        "A LoRA whose strength moves one concept, from two phrases: Concept Sliders, arXiv "
        "2311.12092.",
        _train,
        {"model": "MODEL", "clip": "CLIP", "vae": "VAE", "latent_image": "LATENT"},
        {
            "increase": "very old, wrinkled",
            "decrease": "very young",
            "base_prompt": "photo of a person",
            "keep": "man\nwoman",
            "steps": 300,
            "learning_rate": 0.0002,
            "sampling_steps": 20,
            "cfg": 6.0,
        },
    ),
}
