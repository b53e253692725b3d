"""The search on a small SD1.5 with random weights: trace and neurons of a plain transcription of
the official code.
"""

import pytest
import reduced
import torch
from toy_neurons import transcription

SEEDS, OUTLIERS, STEPS = 2, 6, 4


@pytest.mark.parametrize("case", ["converges", "stalls"])
def test_a_search_on_sd15_is_the_official_procedure(app, case):
    model = reduced.checkpoint("sd15")[0]
    names = ("neuron_layers", "nemo_search")
    layers_module, nemo_search = (app.module(f"nodes.neurons.{name}") for name in names)
    layers = layers_module.select_layers(
        layers_module.value_layers(model.model.diffusion_model), "down, middle"
    )
    assert len(layers) == 7
    draws = torch.Generator().manual_seed(2)
    z = torch.zeros(sum(layer.width for layer in layers))
    z[torch.randperm(len(z), generator=draws)[:OUTLIERS]] = torch.linspace(-6, 5.5, OUTLIERS)
    z = list(z.split([layer.width for layer in layers]))
    activations = [torch.rand(layer.width, generator=draws) for layer in layers]
    noise = torch.randn(SEEDS, 4, 8, 8, generator=draws)
    (positive,) = app.run("CLIPTextEncode", clip=reduced.checkpoint("sd15")[1], text="a red hat")
    neurons = nemo_search.Neurons(tuple(layers))

    def work(predict):
        def scored():
            evaluator, settings = (
                nemo_search.Evaluator(predict, noise, neurons),
                nemo_search.SearchSettings(),
            )
            steps = list(nemo_search.selection_schedule(settings))[:STEPS]
            return [
                evaluator.score(neurons.mask(nemo_search.select(z, activations, *step)))
                for step in steps
            ]

        *before, there = scored()
        threshold = (min(before) + there) / 2 if case == "converges" else 0.0
        evaluator = nemo_search.Evaluator(predict, noise, neurons)
        *_, result = nemo_search.search(
            z, activations, evaluator, nemo_search.SearchSettings(target_score=threshold)
        )
        return transcription(predict, layers, z, activations, noise, threshold), result

    with torch.inference_mode():
        first_step = app.module("nodes.neurons.first_step_comfy")
        (trace, initial, refined), result = first_step.at_first_step(
            model, positive, (4, 8, 8), 961, work
        )
    assert len(trace) == (STEPS if case == "converges" else 16)
    assert [(step.theta, step.k, step.listed, step.score) for step in result.trace] == trace
    assert (result.initial, result.refined) == (initial, refined) and sum(map(len, refined)) > 0
    assert result.converged == (case == "converges")
