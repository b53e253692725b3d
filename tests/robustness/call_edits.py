"""More nodes that `run.py fuzz --calls` tries: edits by words, changes in an interval, learned
factors, pairs.
"""

from __future__ import annotations

import itertools
import random
import unittest.mock
from collections.abc import Callable

import torch

from .call_reference import HEIGHT, WIDTH, Bench, Case, Subject, relative


def words(bench: Bench, case: Case, draw: random.Random, generator: torch.Generator) -> Subject:
    """Edit by Words, toward and away from words alone, in a mask or everywhere."""
    given = {
        "clip": bench.world.clip,
        "edits": draw.choice(("red hair -> a yellow house: 1.5", "a tall man: -0.7")),
    }
    given |= {"prompt": "", "start_percent": draw.choice((0.0, 0.0, 0.4)), "end_percent": 1.0}
    mask = None
    if draw.random() < 0.4:
        mask = torch.rand(draw.choice((1, case.images)), 12, 16, generator=generator)

    def model_for(model, mask, _sigma):
        return bench.app.run("GBX_EditByWords", model=model, mask=mask, **given)[0]

    return Subject(model_for, (0,), mask)


def interval(bench: Bench, case: Case, draw: random.Random, generator: torch.Generator) -> Subject:
    """A low-rank change of some layers in a part of the run, as W2W Apply makes it."""
    apply = bench.app.module("nodes.weights.lora_intervals_comfy").apply_changes
    tensors = low_rank(bench, draw.sample(attention_paths(bench), 3), generator)
    strength = draw.choice((1.0, -0.5))
    start, end = draw.choice(((0.0, 0.4), (0.4, 1.0), (0.05, 1.0)))
    return Subject(lambda model, _mask, _sigma: apply(model, tensors, strength, start, end), (0, 1))


def attention_paths(bench: Bench) -> list[str]:
    """The layers of queries of a U-Net's cross-attentions."""
    layers = bench.app.module("nodes.neurons.neuron_layers").value_layers(bench.network)
    return [f"{layer.path.removesuffix('to_v')}to_q" for layer in layers]


def low_rank(bench: Bench, paths: list[str], generator: torch.Generator) -> dict:
    """ComfyUI's adapters of rank 2 on some layers, by the keys of its patches."""
    from comfy.weight_adapter.lora import LoRAAdapter

    adapters = {}
    for path in paths:
        width, reads = bench.network.get_submodule(path).weight.shape
        up = 2 * torch.randn(width, 2, generator=generator)
        down = torch.randn(2, reads, generator=generator)
        adapters[f"diffusion_model.{path}.weight"] = LoRAAdapter(
            set(), (up, down, 2.0, None, None, None)
        )
    return adapters


def learned_factors(
    bench: Bench, case: Case, draw: random.Random, generator: torch.Generator
) -> Subject:
    """The prediction that Optimize Neuron Mask learns from, of one text, against weights with the
    factors in them.

    Its gradient to the factors is the same whether activations are kept or computed again.
    """
    layers = draw.sample(
        bench.app.module("nodes.neurons.neuron_layers").value_layers(bench.network), 3
    )
    values = {layer.path: torch.rand(layer.width, generator=generator) for layer in layers}
    text, timestep = draw.choice(case.positive).text, draw.choice((981, 421))
    x = torch.randn(1, 4, HEIGHT // 8, WIDTH // 8, generator=generator)

    def check(_conds):
        found, gradients = {}, {}
        behind = bench.on(case, bench.world.model)
        for checkpointing in (False, True):
            predicted, gradients[checkpointing] = factor_gradients(
                bench, behind, text, x, timestep, values, checkpointing=checkpointing
            )
            found[checkpointing] = predicted
        sampling = bench.world.model.get_model_object("model_sampling")
        sigma = sampling.sigma(torch.tensor(float(timestep)))
        baked = bench.app.module("nodes.neurons.neuron_factors_comfy").bake_factors
        subject = Subject(lambda model, *_: baked(model, values), (0,))
        scaled = x * (1 + sigma.square()).sqrt()
        sigmas = torch.tensor([float(sigma), 0.0])
        denoised, _ = bench.alone(
            case, subject, 0, bench.encoded(text)[0][0], scaled, (0, 0), sigma, sigmas
        )
        error = relative(found[False], (scaled - denoised) / sigma)
        again = max(relative(gradients[True][path], gradients[False][path]) for path in values)
        right = error <= 1e-4 and again <= 1e-5
        return (
            "right" if right else "wrong"
        ), f"off by {error:.1e}, the gradient computed again by {again:.1e}"

    return Subject(check=check)


def factor_gradients(
    bench: Bench, model, text: str, x: torch.Tensor, timestep: int, values: dict, *, checkpointing
):
    """The prediction for ``x`` with factors, and the gradient of its mean square to them."""
    run = bench.app.module("nodes.neurons.neuron_attribution_comfy").run
    with torch.inference_mode(False):
        factors = {path: value.clone().requires_grad_() for path, value in values.items()}

    def work(session):
        predicted = session.predicted(x, [timestep], [0], factors)
        predicted.square().mean().backward()
        return predicted.detach()

    with torch.inference_mode():
        predicted = run(
            model, [torch.zeros_like(x)], [bench.encoded(text)], work, checkpointing=checkpointing
        )
    return predicted, {path: factor.grad for path, factor in factors.items()}


#: What Optimize Neuron Mask learns on the bench, in two large steps: fractions, and negated ones.
_LEARNING = {
    "prompts": "portrait, red hair",
    "anchor": "green",
    "ordinary_prompts": "a blue hoodie on a tall man",
    "layers": "all",
    "steps": 2,
    "learning_rate": 0.95,
    "min_factor": -1.0,
    "removal": 20.0,
    "keep": 1.0,
    "sparsity": 0.04,
    "max_neurons": 0,
    "batch_size": 2,
    "noise_samples": 2,
    "seed": 3,
    "width": WIDTH,
    "height": HEIGHT,
    "checkpoint_name": "",
    "precision": "fp32",
}


def learned_mask(
    bench: Bench, case: Case, draw: random.Random, generator: torch.Generator
) -> Subject:
    """A MODEL that carries a mask of Optimize Neuron Mask, learned on the bench once."""
    model, clip = bench.world.model, bench.world.clip
    if "learned" not in bench.kept:
        with unittest.mock.patch.multiple(
            bench.app.module("nodes.neurons.learned_factors_comfy"),
            _LATENT_STEPS=1,
            _ANCHORS=1,
            _MEMORIZED=1,
        ):
            bench.kept["learned"] = bench.app.run(
                "GBX_OptimizeNeuronMask", model=model, clip=clip, **_LEARNING
            )[0]
    mask = bench.kept["learned"]
    rows, sides = draw.choice((("positive", (0,)), ("both", (0, 1))))
    given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "apply_to": rows}

    def model_for(model, _mask, _sigma):
        return bench.app.run("GBX_NemoNeuronMask", model=model, mask=mask, **given)[0]

    return Subject(model_for, sides)


def pairs(subjects: dict[str, Callable[..., Subject]]) -> dict[str, Callable[..., Subject]]:
    """Two different nodes on one MODEL, in both orders."""
    return {
        f"{first}, {second}": _pair(subjects[first], subjects[second])
        for first, second in itertools.permutations(subjects, 2)
    }


def _pair(first: Callable[..., Subject], second: Callable[..., Subject]) -> Callable[..., Subject]:
    def both(bench: Bench, case: Case, draw: random.Random, generator: torch.Generator) -> Subject:
        return Subject(
            stacked=(first(bench, case, draw, generator), second(bench, case, draw, generator))
        )

    return both
