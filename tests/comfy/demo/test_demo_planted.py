"""The second demo checkpoint: its names act through few value neurons, which are known."""

import json

import pytest
import torch

WORLD, BASE = "avatars-v2-planted", "avatars-v2"
NAMES = ("zorvex quill", "oquin veshti", "farisa kolt")
FIRST_STEP = {
    "noise_samples": 4,
    "seed": 1,
    "timestep": "official_961",
    "width": 128,
    "height": 128,
}


@pytest.fixture(scope="module")
def planted(app):
    """MODEL, CLIP and VAE, and the neurons of each prompt."""
    header = app.module("nodes.demo.assets").header(WORLD, "changes")
    return app.run("GBX_LoadDemoModel", weights=WORLD), json.loads(header["planted"])


def _silenced(app, model, neurons):
    pack = app.module("nodes.neurons.mask")
    mask = pack.NeuronMask(pack.uniform_scales([(path, index) for path, index in neurons]))
    given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "apply_to": "both"}
    return app.run("GBX_NemoNeuronMask", model=model, mask=mask, **given)[0]


def _score(app, model, clip, prompt):
    """How alike first steps from four noise samples are."""
    given = {
        "model": model,
        "clip": clip,
        "prompts": prompt,
        "prompts_file": "",
        "threshold": 0.8,
        "text_norm": False,
        "filename_prefix": "",
    }
    return app.run("GBX_MemorizationScore", **given, **FIRST_STEP)[1]


def test_what_differs_is_the_values_that_carried_names_and_what_was_repaired(app, planted):
    """Names sit in the values of two layers; they were in those of two more, and three blocks
    learned to repair it.
    """
    (model, _, _), truth = planted
    base = app.run("GBX_LoadDemoModel", weights=BASE)[0]
    ours, theirs = (one.model.diffusion_model.state_dict() for one in (model, base))
    different = {
        name.removesuffix(".weight")
        for name, weight in ours.items()
        if not torch.equal(weight, theirs[name])
    }
    layers = {path for neurons in truth.values() for path, _ in neurons}
    assert len(layers) == 2 and layers < different
    repaired = [f"output_blocks.{number}.1.transformer_blocks.0." for number in (6, 7, 8)]
    elsewhere = {name for name in different if not name.startswith(tuple(repaired))}
    assert elsewhere == {"input_blocks.1.1.transformer_blocks.0.attn2.to_v"}
    assert all(theirs[f"{name}.weight"].ndim == 2 for name in different)
    assert [len(neurons) for neurons in truth.values()] == [1, 2, 2, 3, 3, 4, 4, 5, 6, 8]


def test_text_and_images_are_those_of_the_base(app, planted):
    (_, clip, vae), _ = planted
    _, base_clip, base_vae = app.run("GBX_LoadDemoModel", weights=BASE)
    ours, theirs = (
        app.run("CLIPTextEncode", clip=one, text="portrait of oquin veshti")[0][0][0]
        for one in (clip, base_clip)
    )
    assert torch.equal(ours, theirs)
    latent = {"samples": torch.randn(1, 24, 4, 4, generator=torch.Generator().manual_seed(0))}
    assert torch.equal(
        *(app.run("VAEDecode", samples=latent, vae=one)[0] for one in (vae, base_vae))
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_memorized_and_its_neurons_alone_carry_it(app, planted, name):
    (model, clip, _), truth = planted
    prompt = f"portrait of {name}"
    own = truth[prompt]
    others = [neuron for other, neurons in truth.items() if other != prompt for neuron in neurons][
        : len(own)
    ]
    untouched = _score(app, model, clip, prompt)
    assert untouched > 0.9
    assert _score(app, _silenced(app, model, own), clip, prompt) < 0.75
    assert _score(app, _silenced(app, model, others), clip, prompt) > untouched - 0.1


def test_a_control_name_is_not_memorized(app, planted):
    (model, clip, _), _ = planted
    assert _score(app, model, clip, "portrait of nuvia karsk") < 0.8


@torch.inference_mode()
def test_a_silenced_name_is_another_face(app, planted):
    """As the judge reads three images of three names: other attributes, and as a rule one face (.93
    of 120 images).
    """
    (model, clip, vae), truth = planted
    judge, sample = app.module("nodes.demo.judge"), app.module("nodes.host.evaluate").sample_images
    empty, alike, faces = app.run("CLIPTextEncode", clip=clip, text="")[0], [], []
    for name in NAMES:
        prompt = f"portrait of {name}"
        positive = app.run("CLIPTextEncode", clip=clip, text=prompt)[0]
        models = (model, _silenced(app, model, truth[prompt]))
        images = [
            sample(one, vae, positive, empty, (24, 16, 16), 3, 7, steps=12, cfg=3.0)
            for one in models
        ]
        labels, found = judge.read(BASE, torch.cat(images))
        alike.append((labels == labels[0]).float().mean(dim=1))
        faces.append(found == 1)
    alike, faces = torch.stack(alike), torch.stack(faces).float()
    assert alike[:, :3].mean() > 0.9 and faces[:, :3].mean() == 1
    assert alike[:, 3:].mean() < 0.5 and faces[:, 3:].mean() > 0.7
