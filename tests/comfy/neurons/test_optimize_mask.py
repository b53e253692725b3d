"""Optimize Neuron Mask, inside a real ComfyUI."""

import csv
import io

import pytest
import tiny_transformers
import torch
from tapping import hooks_left

PROMPT = "portrait of zorvex quill"
HOW = {
    "prompts": PROMPT,
    "anchor": "portrait",
    "ordinary_prompts": "portrait, red hair\nportrait, sunglasses, bald",
    "layers": "all",
    "steps": 20,
    "learning_rate": 0.15,
    "min_factor": 0.0,
    "removal": 10.0,
    "keep": 1.0,
    "sparsity": 0.1,
    "max_neurons": 0,
    "batch_size": 2,
    "noise_samples": 3,
    "seed": 1,
    "width": 128,
    "height": 128,
    "checkpoint_name": "",
}


@pytest.fixture(scope="module")
def planted(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2-planted")


def optimize(app, planted, **changes):
    return app.run("GBX_OptimizeNeuronMask", model=planted[0], clip=planted[1], **(HOW | changes))


@pytest.fixture(scope="module")
def learned(app, planted):
    """What the node returns, for the tests that read it: twenty steps with gradients are dear."""
    return optimize(app, planted)


def known(app):
    import json

    header = app.module("nodes.demo.assets").header("avatars-v2-planted", "changes")
    return {
        text: {tuple(neuron) for neuron in chosen}
        for text, chosen in json.loads(header["planted"]).items()
    }


def test_the_neuron_of_a_name_is_scaled_most_and_the_score_falls(app, planted, learned):
    mask, _, table, report = learned
    (true,) = known(app)[PROMPT]
    assert mask.scales[true[0]][true[1]] < 0.01  # others that help reach 0 as well
    (record,) = mask.searches
    assert (
        record.prompt == PROMPT
        and record.converged
        and set(mask.by_prompt()[PROMPT].neurons) == set(mask.neurons)
    )
    assert record.details["score_after_refinement"] < record.details["score_untouched"] - 0.05
    rows = list(csv.DictReader(io.StringIO(table)))
    assert len(rows) == mask.count and {row["selected_by"] for row in rows} == {"learned"}
    total = sum(1 - float(row["factor"]) for row in rows)
    assert f"{mask.count} of 1408 neurons" in report and f"is {total:.1f}" in report
    assert "80 rows forward and backward" in report and "ordinary prompts lost" in report
    assert hooks_left(planted[0]) == 0 and all(
        p.is_inference() for p in planted[0].model.parameters()
    )
    again = app.module("nodes.neurons.mask_file")
    assert again.from_json(again.to_json(mask), "mask").scales == mask.scales


def test_the_mask_acts_as_any_other(app, planted, learned):
    mask = learned[0]
    masked = app.run(
        "GBX_NemoNeuronMask",
        **{
            "model": planted[0],
            "mask": mask,
            "strength": 1.0,
            "start_percent": 0.0,
            "end_percent": 1.0,
        },
        apply_to="both",
    )[0]
    positive = app.run("CLIPTextEncode", clip=planted[1], text=PROMPT)[0]
    first_step = app.module("nodes.neurons.first_step_comfy")
    noise = torch.randn(1, 24, 16, 16, generator=torch.Generator().manual_seed(3))
    factors = app.module("nodes.neurons.mask").channel_factors(
        mask,
        app.module("nodes.neurons.neuron_layers").value_layers(planted[0].model.diffusion_model),
    )
    with torch.inference_mode():
        given = first_step.at_first_step(
            planted[0], positive, (24, 16, 16), 961, lambda predict: predict(noise, factors, False)
        )
        found = first_step.at_first_step(
            masked, positive, (24, 16, 16), 961, lambda predict: predict(noise)
        )
        plain = first_step.at_first_step(
            planted[0], positive, (24, 16, 16), 961, lambda predict: predict(noise)
        )
    assert torch.allclose(given, found, atol=1e-6) and not torch.allclose(plain, found, atol=1e-3)


def test_no_more_neurons_than_the_bound(app, planted):
    mask = optimize(app, planted, max_neurons=3, steps=8)[0]
    assert 0 < mask.count <= 3
    assert known(app)[PROMPT] <= set(mask.neurons)


def test_two_prompts_share_a_mask_that_starts_from_another(app, planted):
    """Neurons of other layers than the optimized ones stay."""
    pack = app.module("nodes.neurons.mask")
    layers = app.module("nodes.neurons.neuron_layers").value_layers(
        planted[0].model.diffusion_model
    )
    kept = layers[0]
    start = pack.NeuronMask({kept.path: {1: -2.0}}, (), {}, ("start",))
    prompts = "\n".join(list(known(app))[:2])
    mask, _, _, report = optimize(
        app, planted, prompts=prompts, mask=start, layers=layers[-1].name, steps=3
    )
    assert mask.scales[kept.path] == {1: -2.0} and set(mask.scales) <= {kept.path, layers[-1].path}
    assert [search.prompt for search in mask.searches] == prompts.splitlines()
    assert (
        mask.history == ("start", "Optimize Neuron Mask")
        and report.count("with the mask: portrait of") == 2
    )


def test_a_start_that_nothing_changes_stays(app, planted):
    """Without weights in the loss there is no gradient, and Adam makes no step."""
    path = "output_blocks.5.1.transformer_blocks.0.attn2.to_v"
    start = app.module("nodes.neurons.mask").NeuronMask({path: {3: 0.25, 5: 0.0}})
    mask = optimize(app, planted, mask=start, removal=0.0, keep=0.0, sparsity=0.0, steps=2)[0]
    assert mask.scales == {path: {3: 0.25, 5: 0.0}}


def test_hidden_units_of_a_transformer_are_learned(app):
    """As in SD3: no values of a cross-attention, and a flow."""
    comfy_half, pure = (
        app.module("nodes.neurons.learned_factors_comfy"),
        app.module("nodes.neurons.learned_factors"),
    )
    patcher = tiny_transformers.model("SD3")
    layers = app.module("nodes.neurons.neuron_layers").feed_forward_layers(
        patcher.model.diffusion_model
    )
    neurons = app.module("nodes.neurons.nemo_search").Neurons(tuple(layers))
    latents = [
        tiny_transformers.latent(patcher, 2, 8, 8)["samples"][[number % 2]] for number in range(10)
    ]
    conditions = [tiny_transformers.conditioning(tokens) for tokens in (3, 5, 7, 8)]
    step = app.module("nodes.neurons.nemo_inputs").FirstStepInputs(
        shape=tuple(latents[0].shape[1:]), noise_samples=2, seed=1, timestep_name="official_961"
    )
    run = comfy_half.MaskLearning(
        model=patcher,
        clip=None,
        prompts=["p"],
        anchor="a",
        ordinary=["b", "c"],
        neurons=neurons,
        step=step,
        settings=pure.LearningSettings(steps=3),
        path=None,
        identity={},
        inputs="",
    )
    learning = pure.FactorLearning(
        neurons, run.settings, torch.ones(sum(layer.width for layer in layers))
    )
    with torch.inference_mode():
        app.module("nodes.neurons.neuron_attribution_comfy").run(
            patcher,
            latents,
            conditions,
            lambda session: run._learn(session, learning, lambda done: None),
        )
    assert len(learning.losses) == 3 and all(map(torch.isfinite, torch.tensor(learning.losses)))
    assert (learning.factors != 1).any() and hooks_left(patcher) == 0


def test_memorized_prompts_are_seen_at_images_of_the_anchor_and_of_ordinary_prompts(app):
    """Two memorized prompts and three ordinary ones: latents 0 to 2 are of these, 3 to 10 of the
    anchor.
    """
    comfy_half, pure = (
        app.module("nodes.neurons.learned_factors_comfy"),
        app.module("nodes.neurons.learned_factors"),
    )
    step = app.module("nodes.neurons.nemo_inputs").FirstStepInputs(
        shape=(4, 8, 8), noise_samples=2, seed=1, timestep_name="official_961"
    )
    neurons = app.module("nodes.neurons.nemo_search").Neurons(())
    run = comfy_half.MaskLearning(
        model=None,
        clip=None,
        prompts=["p", "q"],
        anchor="a",
        ordinary=["b", "c", "d"],
        neurons=neurons,
        step=step,
        settings=pure.LearningSettings(),
        path=None,
        identity={},
        inputs="",
    )

    class Session:
        def noised(self, latent, noise, timestep):
            return latent, noise.sum().item()

    memorized, ordinary = run._inputs(Session())
    assert [row for _, _, row in memorized] == [0] * 32 + [1] * 32
    first = [latent for (latent, _), _, row in memorized if row == 0]
    assert first == [latent for latent in (0, 3, 1, 4, 2, 5, 0, 6) for _ in range(4)]
    assert [timestep for _, timestep, _ in memorized[:8]] == [961, 800, 640, 480] * 2
    assert len({noise for (_, noise), _, _ in memorized + ordinary}) == len(memorized) + len(
        ordinary
    )
    assert [(latent, row) for (latent, _), _, row in ordinary] == [
        (n, 3 + n) for n in range(3) for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": " \n"}, "^prompts needs 1 or more prompts and has 0"),
        ({"ordinary_prompts": ""}, "^ordinary_prompts needs 1 or more prompts and has 0"),
        ({"anchor": PROMPT}, "none of the prompts"),
        ({"layers": "input_blocks.99.1"}, "input_blocks.99.1"),
    ],
)
def test_what_cannot_be_learned_is_refused(app, planted, changes, message):
    with pytest.raises(ValueError, match=message):
        optimize(app, planted, **changes)


def test_the_report_judges_what_is_left_beside_a_generic_prompt(app, planted):
    """The person of the image, the same person again, and other people, by the judge on the
    wire.
    """
    person, other, third = (
        app.run("GBX_DemoPicture", image_index=number, count=3, part="face")[0]
        for number in (0, 9, 18)
    )
    given = {
        "mask": app.module("nodes.neurons.mask").NeuronMask({"a": {1: 0.0}}),
        "reference_image": person[:1],
        "clip": planted[1],
    }

    def judged(after, **more):
        *_, report, _, sheet = app.run(
            "GBX_MemorizationReport", **given, images_before=person, images_after=after, **more
        )
        assert sheet.ndim == 4 and (sheet.amax((0, 3)) - sheet.amin((0, 3))).max() > 0.5
        return report, sheet.shape

    same, shape = judged(person[:1].repeat(3, 1, 1, 1), generic_images=other)
    assert (
        "Left of the image, after: similarity 1.000, labels 1.00, one face 1.00." in same
        and "Not gone" in same
    )
    gone, _ = judged(third, generic_images=third)
    assert "Gone: no more is left" in gone and "generic prompt: similarity 0." in gone
    broken, _ = judged(
        torch.rand(3, 128, 128, 3, generator=torch.Generator().manual_seed(1)), generic_images=other
    )
    assert "Broken" in broken
    alone, smaller = judged(other)
    assert "cannot be judged alone" in alone and "Gone" not in alone and smaller[1] < shape[1]


def test_the_report_counts_negated_neurons(app):
    mask = app.module("nodes.neurons.mask").NeuronMask(
        {"input_blocks.1.1.a": {1: -0.5, 2: 0.0, 3: -1.0}}
    )
    assert "2 neurons are negated" in app.run("GBX_MemorizationReport", mask=mask)[1]
