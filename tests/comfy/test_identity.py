"""Digests of MODEL, CLIP and VAE: the same in every process and after sampling, another for every
change.
"""

import pytest
import torch

_SPACE = "avatars-v2-w2w.safetensors"
_SAMPLED = {
    "seed": 0,
    "count": 1,
    "components": 9,
    "spread": 1.0,
    "source": "random",
    "member_name": "",
}


@pytest.fixture(scope="module")
def identity(app):
    return app.module("nodes.host.identity")


@pytest.fixture(scope="module")
def world(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")


def sample(app, world, model):
    how = {
        "seed": 1,
        "steps": 2,
        "cfg": 1.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
    }
    (positive,) = app.run("CLIPTextEncode", clip=world[1], text="portrait")
    with torch.inference_mode():
        latent = {"samples": torch.zeros(1, 24, 8, 8)}
    app.run(
        "KSampler", model=model, positive=positive, negative=positive, latent_image=latent, **how
    )


def patched(model, key="diffusion_model.out.2.weight", value=0.01):
    clone = model.clone()
    weight = clone.model.state_dict()[key]
    clone.add_patches({key: ("diff", (torch.full_like(weight, value),))}, 0.5)
    return clone


def test_loading_and_sampling_do_not_count(app, identity, world):
    """Also while a clone with a LoRA lies in the same network, and for the same file loaded
    again.
    """
    model = world[0]
    before = identity.model_digest(model)
    lora = patched(model)
    with_lora = identity.model_digest(lora)
    assert with_lora != before
    sample(app, world, lora)
    assert identity.model_digest(model) == before and identity.model_digest(lora) == with_lora
    sample(app, world, model)
    assert identity.model_digest(model) == before and identity.model_digest(lora) == with_lora
    again = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    assert identity.model_digest(again[0]) == before
    assert identity.clip_digest(again[1]) == identity.clip_digest(world[1])
    assert identity.vae_digest(again[2]) == identity.vae_digest(world[2])
    assert identity.model_digest(patched(again[0])) == with_lora


def test_every_change_counts(app, identity, world):
    model, clip, _ = world
    found = [identity.model_digest(model), identity.model_digest(patched(model, value=0.02))]
    for name in ("diffusion_model.out.2.weight", "diffusion_model.input_blocks.0.0.bias"):
        other = app.run("GBX_LoadDemoModel", weights="avatars-v2")[0]
        with torch.inference_mode():
            other.model.state_dict()[name].mul_(1.001)
        found.append(identity.model_digest(other))
    (point,) = app.run(
        "GBX_W2WSample", space=app.run("GBX_W2WLoadSpace", space_name=_SPACE)[0], **_SAMPLED
    )[0]
    for number in (0.25, 0.5):
        found.append(
            identity.model_digest(app.run("RescaleCFG", model=model, multiplier=number)[0])
        )
        for end in (0.5, 1.0):
            how = {"strength": number, "start_percent": 0.0, "end_percent": end}
            found.append(
                identity.model_digest(app.run("GBX_W2WApply", model=model, point=point, **how)[0])
            )
    wrapped = model.clone()
    wrapped.set_model_unet_function_wrapper(
        lambda apply, given: apply(given["input"], given["timestep"], **given["c"])
    )
    found.append(identity.model_digest(wrapped))
    assert len(set(found)) == len(found)
    skipping = clip.clone()
    skipping.clip_layer(-2)
    assert identity.clip_digest(skipping) != identity.clip_digest(clip)
    assert identity.clip_digest(None) is None is identity.vae_digest(None)
