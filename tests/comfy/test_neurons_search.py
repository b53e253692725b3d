"""The search on a small SD1.5 with random weights: trace and neurons of a plain transcription of the official rules."""

import pytest
import reduced
import torch
from toy_neurons import transcription

SEEDS, OUTLIERS, STEPS = 2, 6, 4


@pytest.mark.parametrize("case", ["converges", "stalls"])
def test_the_search_of_a_network_is_the_official_procedure(comfy, case):
    model = reduced.checkpoint("sd15")[0]
    pack = comfy.module("nodes.neurons.layers")
    layers = pack.choose(pack.value_layers(model.model.diffusion_model), "down, middle")
    assert len(layers) == 7
    draws = torch.Generator().manual_seed(2)
    z = torch.zeros(sum(layer.width for layer in layers))
    z[torch.randperm(len(z), generator=draws)[:OUTLIERS]] = torch.linspace(-6, 5.5, OUTLIERS)
    z = list(z.split([layer.width for layer in layers]))
    activations = [torch.rand(layer.width, generator=draws) for layer in layers]
    noise = torch.randn(SEEDS, 4, 8, 8, generator=draws)
    (positive,) = comfy.run("CLIPTextEncode", clip=reduced.checkpoint("sd15")[1], text="a red hat")
    names = ("evaluation", "localization", "speculation")
    evaluation, localization, speculation = (comfy.module(f"nodes.neurons.{name}") for name in names)
    neurons = evaluation.Neurons(tuple(layers))

    def work(predict):
        def scored():
            evaluator = evaluation.Evaluator(predict, noise, neurons, 0.0, evaluation.SAME_SEED)
            looks = list(localization.looks(z, activations, localization.Settings()))[:STEPS]
            return [evaluator.exact(neurons.mask(chosen)) for _, _, chosen in looks]

        def searched(refiner):
            evaluator = evaluation.Evaluator(predict, noise, neurons, 0.0, evaluation.SAME_SEED)
            return localization.search(z, activations, evaluator, localization.Settings(threshold), refiner)

        *before, there = scored()
        threshold = (min(before) + there) / 2 if case == "converges" else 0.0
        wanted = transcription(predict, layers, z, activations, noise, threshold)
        return wanted, searched(localization.refine), searched(speculation.refine)

    with torch.inference_mode():
        first_step = comfy.module("nodes.host.first_step")
        (trace, initial, kept), exact, fast = first_step.at_first_step(model, positive, (4, 8, 8), 961, work)
    assert len(trace) == (STEPS if case == "converges" else 16)
    assert [(look.theta, look.k, look.listed, look.score) for look in exact.trace] == trace
    assert (exact.initial, exact.refined) == (initial, kept) and sum(map(len, kept)) > 0
    assert (fast.initial, fast.refined) == (initial, kept)
    assert exact.converged == fast.converged == (case == "converges")
