"""Cells of the neurons family: what each node must do on a network."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .subject import PROMPT, Subject, demand

_PROMPTS = "a red cat\na blue dog\na man"
TYPES = ("feed_forward", "value")


def _size(subject: Subject) -> dict[str, Any]:
    return {"width": subject.side, "height": subject.side}


def _statistics(subject: Subject, kind: str, prompts: str = _PROMPTS):
    return subject.run(
        "NeuronStatistics",
        model=subject.model,
        clip=subject.text_encoder,
        prompts=prompts,
        layers="all",
        neuron_type=kind,
        **_size(subject),
    )[0]


def _kept_statistics(subject: Subject, kind: str):
    return subject.once(f"statistics {kind}", lambda: _statistics(subject, kind))


def neuron_statistics(subject: Subject, kind: str) -> str:
    """The mean over prompts does not depend on their order."""
    statistics = _kept_statistics(subject, kind)
    reversed_ = _statistics(subject, kind, "\n".join(reversed(_PROMPTS.split("\n"))))
    for path, layer in statistics.layers.items():
        same = torch.allclose(layer.mean, reversed_.layers[path].mean, rtol=1e-3, atol=1e-5)
        demand(same, f"The means of {path} depend on the order of the prompts.")
    demand(bool(statistics.layers), "No layer is measured.")
    return f"{len(statistics.layers)} layers"


def neuron_mask(subject: Subject, kind: str) -> str:
    """An empty mask is stock; a baked mask samples what the hooked one does."""
    mask = subject.app.module("nodes.neurons.mask")
    layers = _kept_statistics(subject, kind).layers
    path = list(layers)[-1]
    neurons = [(path, index) for index in range(len(layers[path].mean))]
    silent = mask.NeuronMask(mask.uniform_scales(neurons, 0.0))
    empty = mask.NeuronMask(mask.uniform_scales([], 0.0))
    subject.same(subject.run("NemoNeuronMask", model=subject.model, mask=empty)[0])
    hooked = subject.changed(subject.run("NemoNeuronMask", model=subject.model, mask=silent)[0])
    baked = subject.sample(subject.run("BakeNeuronMask", model=subject.model, mask=silent)[0])
    error = float((baked - hooked).abs().max() / (hooked - subject.plain).abs().max())
    demand(error < 1e-3, f"The baked mask differs by {error:.2g} of the change.")
    return f"{path}, baked within {error:.1g}"


def _acts(subject: Subject, mask: Any) -> None:
    demand(mask.count > 0, "No neuron is found.")
    subject.changed(subject.run("NemoNeuronMask", model=subject.model, mask=mask)[0])


def nemo_localize(subject: Subject, kind: str, method: str) -> str:
    """Silencing what is found changes the image."""
    mask = subject.run(
        "NemoLocalize",
        model=subject.model,
        clip=subject.text_encoder,
        statistics=_kept_statistics(subject, kind),
        prompts="a red cat",
        layers="all",
        threshold=0.0,
        target_score=0.999,
        neuron_type=kind,
        method=method,
        noise_samples=5,  # of two alone a random network's score may be below 0
        **_size(subject),
    )[0]
    _acts(subject, mask)
    return f"{mask.count} neurons"


def optimize_neuron_mask(subject: Subject, kind: str) -> str:
    """The learned factors change the image."""
    mask = subject.run(
        "OptimizeNeuronMask",
        model=subject.model,
        clip=subject.text_encoder,
        prompts="a red cat",
        anchor="a cat",
        ordinary_prompts="a dog",
        layers="all",
        steps=2,
        learning_rate=0.5,
        batch_size=1,
        neuron_type=kind,
        noise_samples=2,
        **_size(subject),
    )[0]
    _acts(subject, mask)
    return f"{mask.count} neurons"


def concept_neurons(subject: Subject, kind: str) -> str:
    """As many neurons as requested, and they act."""
    mask = subject.run(
        "ConceptNeurons",
        model=subject.model,
        clip=subject.text_encoder,
        concept_prompts="a red cat\na red dog",
        neutral_prompts="a cat\na dog",
        concept="red",
        neuron_type=kind,
        count=20,
        layers="all",
        **_size(subject),
    )[0]
    _acts(subject, mask)
    return f"{mask.count} neurons"


def layer_ablation(subject: Subject, kind: str) -> str:
    """Every layer of the statistics is ablated."""
    scored = _score(subject, "a red cat", layer_ablation=kind)
    layers = _kept_statistics(subject, kind).layers
    lines = [line for line in scored[5].split("\n") if any(word in line for word in layers)]
    demand(bool(scored[6]) or bool(lines), "No layer is in the report.")
    return f"{len(layers)} layers"


def _score(subject: Subject, prompts: str, **more: Any) -> tuple:
    return subject.run(
        "MemorizationScore",
        model=subject.model,
        clip=subject.text_encoder,
        prompts=prompts,
        noise_samples=2,
        **_size(subject),
        **more,
    )


def memorization_score(subject: Subject) -> str:
    """The score of two prompts is the larger one of each."""
    red = _score(subject, "a red cat")[1]
    blue = _score(subject, "a blue dog")[1]
    both = _score(subject, "a red cat\na blue dog", sharpness=True)[1]
    demand(abs(both - max(red, blue)) < 1e-4 or red == blue, "The score is not the largest one.")
    demand(red != blue, "Two prompts have the same score.")
    return f"{red:.3g} and {blue:.3g}"


def bright_ending(subject: Subject) -> str:
    """The column of the bright ending has a number."""
    table = _score(subject, "a red cat", bright_ending_steps=2)[4]
    demand("bright" in table.lower(), "The table has no bright ending.")
    return "measured"


def calibrate_threshold(subject: Subject) -> str:
    """The threshold is the mean plus so many deviations."""

    def threshold(deviations: float) -> float:
        return subject.run(
            "CalibrateThreshold",
            model=subject.model,
            clip=subject.text_encoder,
            prompts=_PROMPTS,
            deviations=deviations,
            noise_samples=2,
            **_size(subject),
        )[0]

    low = threshold(1.0)
    middle = threshold(2.0)
    high = threshold(3.0)
    demand(abs((high - middle) - (middle - low)) < 1e-4, "The threshold is not linear.")
    demand(high > low, "The threshold does not grow.")
    return f"{low:.3g} to {high:.3g}"


def embedding_adjustment(subject: Subject) -> str:
    """The text's embedding moves and stays finite."""
    positive = subject.run(
        "EmbeddingAdjustment",
        model=subject.model,
        positive=subject.positive,
        negative=subject.negative,
        steps=2,
        target_norm=0.0001,
        noise_samples=2,
        **_size(subject),
    )[0]
    before = subject.positive[0][0]
    after = positive[0][0]
    demand(bool(torch.isfinite(after).all()), "The embedding is not finite.")
    demand(not torch.equal(after.cpu(), before.cpu()), "The embedding does not move.")
    return "embedding moves"


def attention_scaling(subject: Subject) -> str:
    """Scale 1 is stock, another scale acts."""

    def scaled(scale: float):
        return subject.run(
            "AttentionScaling",
            model=subject.model,
            clip=subject.text_encoder,
            prompt=PROMPT,
            scale=scale,
            mask_padding=False,
        )[0]

    subject.same(scaled(1.0))
    subject.changed(scaled(3.0))
    return "scale 1 bit-equal"


def random_tokens(subject: Subject) -> str:
    """The conditioning is that of the prompt that comes out."""
    inputs = {"clip": subject.text_encoder, "prompt": "a red cat", "count": 2}
    try:
        conditioning, prompt = subject.run("RandomTokens", **inputs)
    except ValueError as error:
        if "words field" not in str(error):  # encoders without CLIP's vocabulary
            raise
        conditioning, prompt = subject.run("RandomTokens", **inputs, words="tree\nboat\nhouse")
    demand(prompt != "a red cat", "No token is added.")
    same = torch.equal(conditioning[0][0], subject.encode(prompt)[0][0])
    demand(same, "The conditioning is not that of the prompt.")
    return "equals the encoded prompt"


def memorization_audit(subject: Subject) -> str:
    """Both similarities are measured."""
    result = subject.run(
        "MemorizationAudit",
        model=subject.model,
        vae=subject.vae,
        positive=subject.positive,
        negative=subject.negative,
        image=torch.rand(1, subject.side, subject.side, 3),
        steps=2,
        noise_samples=1,
        batch_size=1,
        sampling_steps=1,
        similarity="ssim",
    )
    demand(all(-1 <= value <= 1 for value in result[1:3]), "A similarity is out of its range.")
    return f"{result[1]:.3g} and {result[2]:.3g}"


def adversarial_unlearning(subject: Subject) -> str:
    """The trained LoRA acts, and is what the file holds."""
    model, lora, *_ = subject.run(
        "AdversarialUnlearning",
        model=subject.model,
        vae=subject.vae,
        clip=subject.text_encoder,
        positive=subject.positive,
        image=torch.rand(1, subject.side, subject.side, 3),
        surrogates=torch.rand(1, subject.side, subject.side, 3),
        prompts="a dog",
        steps=1,
        batch_size=1,
        attack_steps=1,
        noise_samples=1,
        restart=1,
        rank=2,
        layers="",
        sampling_steps=1,
        gradient_checkpointing=False,
    )
    subject.changed(model)
    demand(len(lora) > 0, "The LoRA is empty.")
    return f"{len(lora)} tensors"


def _of_types(node: str, cell: Callable, **more: Any) -> dict[str, Callable[[Subject], str]]:
    return {
        f"{node} ({kind})": functools.partial(cell, kind=kind, **more)  # one cell for each type
        for kind in TYPES
    }


CELLS = {
    **_of_types("NeuronStatistics", neuron_statistics),
    **_of_types("NemoNeuronMask, BakeNeuronMask", neuron_mask),
    **_of_types("NemoLocalize", nemo_localize, method="search"),
    "NemoLocalize (attribution)": functools.partial(
        nemo_localize, kind="feed_forward", method="attribution"
    ),
    **_of_types("OptimizeNeuronMask", optimize_neuron_mask),
    **_of_types("ConceptNeurons", concept_neurons),
    "MemorizationScore": memorization_score,
    **{
        f"MemorizationScore (layers, {kind})": functools.partial(layer_ablation, kind=kind)
        for kind in TYPES
    },
    "MemorizationScore (bright ending)": bright_ending,
    "CalibrateThreshold": calibrate_threshold,
    "AttentionScaling": attention_scaling,
    "EmbeddingAdjustment": embedding_adjustment,
    "RandomTokens": random_tokens,
    "MemorizationAudit": memorization_audit,
    "AdversarialUnlearning": adversarial_unlearning,
}
