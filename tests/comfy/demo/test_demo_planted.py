"""The second demo checkpoint: its names act through few value neurons, which are known."""

import json

import pytest
import torch

WORLD, BASE = "avatars-v2-planted", "avatars-v2"
FIRST_STEP = {"noise_samples": 4, "seed": 1, "timestep": "official_961", "width": 128, "height": 128}


@pytest.fixture(scope="module")
def planted(comfy):
    """MODEL, CLIP and VAE, the neurons of each prompt, and its decoys."""
    header = comfy.module("nodes.demo.assets").header(WORLD, "changes")
    return comfy.run("GBX_LoadDemoModel", weights=WORLD), json.loads(header["planted"]), json.loads(header["decoys"])


def _silenced(comfy, model, neurons):
    pack = comfy.module("nodes.neurons.mask")
    mask = pack.NeuronMask(pack.uniform_scales([(path, index) for path, index in neurons]))
    given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "apply_to": "both"}
    return comfy.run("GBX_NemoNeuronMask", model=model, mask=mask, **given)[0]


def _score(comfy, model, clip, prompt):
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
    return comfy.run("GBX_MemorizationScore", **given, **FIRST_STEP)[1]


def test_only_rows_of_planted_values_and_decoys_differ_and_no_key(comfy, planted):
    (model, _, _), truth, decoys = planted
    base = comfy.run("GBX_LoadDemoModel", weights=BASE)[0]
    named = [*truth.values(), *decoys.values()]
    found, wanted = set(), {(path, index) for neurons in named for path, index in neurons}
    ours, theirs = (one.model.diffusion_model.state_dict() for one in (model, base))
    for name, weight in ours.items():
        if "attn2.to_k" in name:
            assert torch.equal(weight, theirs[name])
        if "attn2.to_v" in name:
            rows = (weight != theirs[name]).any(1).nonzero().flatten().tolist()
            found |= {(name.removesuffix(".weight"), row) for row in rows}
    assert found == wanted and sorted(map(len, truth.values())) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8]


def test_text_and_images_are_those_of_the_base(comfy, planted):
    (_, clip, vae), _, _ = planted
    _, base_clip, base_vae = comfy.run("GBX_LoadDemoModel", weights=BASE)
    ours, theirs = (
        comfy.run("CLIPTextEncode", clip=one, text="portrait of jorrin toov")[0][0][0] for one in (clip, base_clip)
    )
    assert torch.equal(ours, theirs)
    latent = {"samples": torch.randn(1, 24, 4, 4, generator=torch.Generator().manual_seed(0))}
    assert torch.equal(*(comfy.run("VAEDecode", samples=latent, vae=one)[0] for one in (vae, base_vae)))


@pytest.mark.parametrize("name", ["pelham alp", "jorrin toov", "ottavia alp"])
def test_a_name_is_memorized_and_its_neurons_alone_carry_it(comfy, planted, name):
    (model, clip, _), truth, decoys = planted
    prompt = f"portrait of {name}"
    others = [neuron for other, neurons in truth.items() if other != prompt for neuron in neurons]
    untouched = _score(comfy, model, clip, prompt)
    assert untouched > 0.9
    assert _score(comfy, _silenced(comfy, model, truth[prompt]), clip, prompt) < 0.8
    assert _score(comfy, _silenced(comfy, model, others), clip, prompt) > untouched - 0.05
    assert _score(comfy, _silenced(comfy, model, decoys[prompt]), clip, prompt) > untouched - 0.05


def test_a_control_name_is_not_memorized(comfy, planted):
    (model, clip, _), _, _ = planted
    assert _score(comfy, model, clip, "portrait of nuvia karsk") < 0.8
