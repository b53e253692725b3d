"""Concept Neurons inside ComfyUI: planted neurons of a network are found, and their mask is a
slider.
"""

import pytest
import torch
from quantized import model_copy
from tapping import hooks_left

PATH = "output_blocks.5.1.transformer_blocks.0.attn2.to_v"
HIDDEN = "output_blocks.5.1.transformer_blocks.0.ff.net.2"
PLANTED = [4, 9, 40]
FACES = (
    "smiling",
    "serious, red shirt",
    "sad, curly black hair",
    "pale skin",
    "brown bob, hoodie",
    "tongue out",
)
WITHOUT = "\n".join(f"portrait, {face}" for face in FACES)
SMALL = {
    "concept_prompts": "",
    "concept": "sunglasses",
    "count": 0,
    "seed": 3,
    "width": 64,
    "height": 64,
}


@pytest.fixture(scope="module")
def demo(app):
    model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    return model, clip


def find(app, model, clip, **changes):
    given = {
        "neutral_prompts": WITHOUT,
        "neuron_type": "value",
        "layers": "output_blocks.5.1",
        **SMALL,
    }
    return app.run("GBX_ConceptNeurons", model=model, clip=clip, **(given | changes))


def embedding(app, clip, text):
    return app.run("CLIPTextEncode", clip=clip, text=text)[0][0][0][0]


def planted(app, demo):
    """A copy in which only the planted neurons of a layer read what the concept adds to the texts.

    The other rows are taken out of the space of those differences.
    """
    model, clip = demo
    pairs = [(f"{text}, sunglasses", text) for text in WITHOUT.splitlines()]
    with torch.inference_mode():
        differences = torch.cat(
            [
                embedding(app, clip, present) - embedding(app, clip, absent)
                for present, absent in pairs
            ]
        ).double()
    _, sizes, directions = torch.linalg.svd(differences, full_matrices=False)
    directions = directions[sizes > 1e-6 * sizes[0]]
    other = model.clone()
    other.model = model_copy(model.model)
    with torch.inference_mode(False), torch.no_grad():
        weight = other.model.diffusion_model.get_submodule(PATH).weight
        free = weight.double() - weight.double() @ directions.T @ directions
        rows = torch.tensor([index for index in range(len(weight)) if index not in PLANTED])
        weight[rows] = free[rows].float()
        weight[PLANTED] = 5 * directions[0].float()
    return other, clip, len(directions)


def test_planted_neurons_are_found_and_swapped_prompts_find_none(app, demo):
    model, clip, rank = planted(app, demo)
    assert (
        rank < embedding(app, clip, "portrait").shape[-1]
    )  # else nothing would be left of the other rows
    mask, report = find(app, model, clip)
    assert mask.scales == {PATH: dict.fromkeys(PLANTED, 0.0)}
    assert mask.searches[0].prompt == "sunglasses" and mask.searches[0].converged
    assert set(mask.searches[0].details["z"][PATH]) == {"4", "9", "40"}
    assert "sunglasses: 3 of 64 neurons in 1 layers chosen; 3 are beyond chance." in report
    present = [f"{text}, sunglasses" for text in WITHOUT.splitlines()]
    absent = WITHOUT.splitlines()
    for number in range(0, 6, 2):
        present[number], absent[number] = absent[number], present[number]
    lists = {"concept_prompts": "\n".join(present), "neutral_prompts": "\n".join(absent)}
    empty, report = find(app, model, clip, **lists)
    assert empty.count == 0 and not empty.searches[0].converged and "0 are beyond chance" in report
    three, _ = find(app, model, clip, **lists, count=3)
    assert three.count == 3


def test_effects_of_hidden_units_are_those_of_recorded_activations(app, demo):
    """Against activations that a hook records in the same predictions, in float64."""
    model, clip = demo
    first_step, scores = (
        app.module(f"nodes.neurons.{name}") for name in ("first_step_comfy", "memorization_score")
    )
    seen = []
    module = model.model.diffusion_model.get_submodule(HIDDEN)
    texts = WITHOUT.splitlines()
    handle = module.register_forward_hook(
        lambda _module, args, _out: seen.append(args[0][0].double().abs().mean(0))
    )
    try:
        with torch.inference_mode():
            for number, text in enumerate(texts):
                noise = scores.seeded_noise((24, 8, 8), 1, 3 + number)
                for one in (f"{text}, sunglasses", text):
                    positive = app.run("CLIPTextEncode", clip=clip, text=one)[0]
                    first_step.at_first_step(
                        model, positive, (24, 8, 8), 961, lambda predict, n=noise: predict(n)
                    )
    finally:
        handle.remove()
    values = torch.stack(seen).reshape(len(texts), 2, -1)
    spread = values.reshape(2 * len(texts), -1).std(0, correction=0)
    expected = ((values[:, 0] - values[:, 1]).mean(0) / spread).nan_to_num(
        0
    )  # some units are always 0
    mask, report = find(app, model, clip, neuron_type="feed_forward", count=5)
    found = {int(index): z for index, z in mask.searches[0].details["z"][HIDDEN].items()}
    assert set(found) == set(expected.abs().topk(5).indices.tolist())
    assert all(abs(z - float(expected[index])) < 1e-3 for index, z in found.items())
    assert "12 rows of the network" in report


def test_strength_is_a_slider(app, demo):
    """1 switches off, 2 negates, -1 doubles, 0 changes no bit."""
    model, clip = demo
    mask, _ = find(app, model, clip, neuron_type="feed_forward", count=8)
    positive, negative = (
        app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("portrait, smiling", "")
    )

    def sample(patcher):
        settings = {
            "seed": 7,
            "steps": 2,
            "cfg": 2.0,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        }
        latent = {"samples": torch.zeros(1, 24, 8, 8)}
        given = {
            "model": patcher,
            "positive": positive,
            "negative": negative,
            "latent_image": latent,
        }
        return app.run("KSampler", **given, **settings)[0]["samples"]

    def masked(strength):
        given = {"start_percent": 0.0, "end_percent": 1.0, "apply_to": "both", "strength": strength}
        return app.run("GBX_NemoNeuronMask", model=model, mask=mask, **given)[0]

    columns = [int(index) for index in mask.scales[HIDDEN]]
    for strength in (1.0, 2.0, -1.0):
        scaled = model.clone()
        scaled.model = model_copy(model.model)
        with torch.inference_mode(False), torch.no_grad():
            scaled.model.diffusion_model.get_submodule(HIDDEN).weight[:, columns] *= 1 - strength
        assert torch.allclose(sample(masked(strength)), sample(scaled), atol=1e-4)
    assert torch.equal(sample(masked(0.0)), sample(model)) and hooks_left(model) == 0


def test_masks_are_saved_and_edited_like_others(app, demo):
    model, clip = demo
    mask, _ = find(app, model, clip, count=6)
    file, _ = app.run("GBX_SaveNeuronMask", mask=mask, filename_prefix="glassbox/concept")
    loaded, _, report = app.run("GBX_LoadNeuronMask", file=file, model=model)
    assert loaded.scales == mask.scales and "6 neurons" in report
    largest, _ = app.run(
        "GBX_NeuronMaskEdit", mask=loaded, operation="largest_z", count=2, neurons="", seed=0
    )
    z = mask.largest_z()
    assert set(largest.neurons) == set(sorted(z, key=lambda neuron: -abs(z[neuron]))[:2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concept": ""}, "concept_prompts, or a concept"),
        ({"concept_prompts": "a\nb"}, "2 lines and neutral_prompts 6"),
        ({"neutral_prompts": "portrait"}, "there are 1"),
        ({"layers": "nowhere"}, "No layer matches"),
    ],
)
def test_inputs_that_cannot_be_compared_are_refused(app, demo, changes, message):
    with pytest.raises(ValueError, match=message):
        find(app, *demo, **changes)


def test_few_pairs_are_named_in_the_report(app, demo):
    _, report = find(app, *demo, neutral_prompts="portrait, smiling\nportrait, sad", count=2)
    assert "2 pairs cannot show more than chance: write 6 or more." in report
