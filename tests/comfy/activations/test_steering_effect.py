"""What the demo workflows of steering and patching show, on ten fixed seeds: the judge reads
another image.
"""

import json

import pytest
import repository
import torch
from tapping import World

COUNT, STEPS = 10, 8
WHOLE = {"start_percent": 0.0, "end_percent": 1.0, "rows": "conditional", "preserve_norm": False}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


@torch.inference_mode()
def sampled(demo, model, text):
    """Latents of the seeds 0 to 9."""
    noise = [
        torch.randn(1, 24, 16, 16, generator=torch.Generator().manual_seed(seed))
        for seed in range(COUNT)
    ]
    (positive,) = demo.app.run("CLIPTextEncode", clip=demo.clip, text=text)
    import comfy.sample

    blank = torch.zeros(COUNT, 24, 16, 16)
    return comfy.sample.sample(
        model,
        torch.cat(noise),
        STEPS,
        3.0,
        "euler",
        "normal",
        positive,
        demo.negative,
        blank,
        disable_pbar=True,
    )


@torch.inference_mode()
def read(demo, latents, attribute):
    """What the judge reads in each image."""
    judge = demo.app.module("nodes.demo.judge").load("avatars-v2")
    images = demo.vae.decode(latents)
    return [
        judge.labels[attribute][one]
        for one in judge(images.movedim(-1, 1).float())[attribute].argmax(-1).tolist()
    ]


def nodes_of(workflow, type_):
    """The nodes of a type, also those inside subgraphs."""
    saved = json.loads(repository.named(workflow).read_text("utf-8"))
    inside = [node for one in saved["definitions"]["subgraphs"] for node in one["nodes"]]
    return [node for node in (*saved["nodes"], *inside) if node["type"] == type_]


def direction_of(demo, node, count):
    """What a node computes, from ``count`` images per prompt."""
    toward, away, preset, ids, *_ = node["widgets_values"]
    name = "".join(node["widgets_values"][9:])  # left out while it is empty
    (latent,) = demo.app.run("EmptyLatentImage", width=128, height=128, batch_size=count)
    given = {
        "toward_prompts": toward,
        "away_prompts": away,
        "preset": preset,
        "ids": ids,
        "recorded_steps": "all",
    }
    given |= {"seed": 1000, "steps": STEPS, "cfg": 3.0, "name": name}
    return demo.app.run(
        "GBX_PromptSteeringDirection", model=demo.model, clip=demo.clip, latent=latent, **given
    )[0]


def test_the_steering_workflow_changes_the_skin(demo):
    (node,) = nodes_of("demo_activations_steering", "GBX_PromptSteeringDirection")
    direction = direction_of(demo, node, 3)
    strength = nodes_of("demo_activations_steering", "GBX_ActivationSteering")[0]["widgets_values"][
        0
    ]
    (steered,) = demo.app.run(
        "GBX_ActivationSteering", model=demo.model, direction=direction, strength=strength, **WHOLE
    )
    text = node["widgets_values"][0].splitlines()[0].replace("black skin, ", "")
    plain, found = (
        read(demo, sampled(demo, model, text), "skin") for model in (demo.model, steered)
    )
    assert "black" not in plain and found.count("black") >= 8, (plain, found)


def test_the_sliders_workflow_changes_skin_and_background(demo):
    name = "demo_activations_steering_sliders"
    skin, background = (
        direction_of(demo, node, 2) for node in nodes_of(name, "GBX_PromptSteeringDirection")
    )
    assert (skin.name, background.name) == ("black skin", "green background")
    edits, *_ = nodes_of(name, "GBX_MixSteeringDirections")[0]["widgets_values"]
    mixed, _ = demo.app.run(
        "GBX_MixSteeringDirections", direction_1=skin, direction_2=background, edits=edits
    )
    (steered,) = demo.app.run(
        "GBX_ActivationSteering", model=demo.model, direction=mixed, strength=1.0, **WHOLE
    )
    text = "portrait, short brown hair, shaven, no glasses, blue hoodie, smiling, open eyes"
    runs = [sampled(demo, model, text) for model in (demo.model, steered)]
    for attribute, value in (("skin", "black"), ("background", "green")):
        plain, found = (read(demo, latents, attribute).count(value) for latents in runs)
        assert plain <= 1 and found >= 8, (attribute, plain, found)


def test_the_workflow_of_sparse_features_brings_the_background(demo):
    (images, face, _) = demo.app.run("GBX_DemoPicture", image_index=4, count=20, part="face")
    autoencoder, ids, _ = demo.app.run(
        "GBX_LoadSparseAutoencoder", file="avatars-v2-sparse-autoencoder.safetensors"
    )
    (positive,) = demo.app.run("CLIPTextEncode", clip=demo.clip, text="portrait")
    tap = {
        "preset": "custom_ids",
        "ids": ids,
        "noise_unit": "paper_t",
        "level": 50.0,
        "seed": 0,
        "noise_samples": 4,
    }
    tap |= {"model": demo.model, "positive": positive, "image": images, "vae": demo.vae}
    activations, _ = demo.app.run("GBX_LayerActivationTap", pool_size=1, precision="fp16", **tap)
    shown = {
        "image": images,
        "mask": 1 - face,
        "image_index": 0,
        "count": 3,
        "top_images": 4,
        "opacity": 0.65,
    }
    strengths = demo.app.run(
        "GBX_SparseFeatures", autoencoder=autoencoder, activations=activations, **shown
    )[1]
    (steered,) = demo.app.run(
        "GBX_SparseFeatureSteering",
        model=demo.model,
        autoencoder=autoencoder,
        strengths=strengths,
        mode="add",
        start_percent=0.0,
        end_percent=1.0,
        rows="conditional",
    )
    texts = [
        node["widgets_values"][0]
        for node in nodes_of("demo_activations_sparse_features", "CLIPTextEncode")
    ]
    (text,) = (one for one in texts if "hoodie" in one)
    plain, found = (
        read(demo, sampled(demo, model, text), "background").count("green")
        for model in (demo.model, steered)
    )
    assert plain <= 1 and found >= 8, (plain, found)


def test_the_patching_workflow_brings_the_sunglasses(demo):
    texts = [
        f"portrait, light skin, short brown hair, shaven, {one}, smiling, blue hoodie, plain gray "
        "background"
        for one in ("sunglasses", "no glasses")
    ]
    model, recording = demo.record("all", "both", "*-vit-out")
    source = sampled(demo, model, texts[0])
    ids = nodes_of("demo_activations_patching", "GBX_ActivationPatching")[0]["widgets_values"][0]
    (patched, _) = demo.app.run(
        "GBX_ActivationPatching",
        model=demo.model,
        recording=recording,
        latent={"samples": source},
        ids=ids,
        patched_steps="all",
        strength=1.0,
    )
    plain, found = (
        read(demo, sampled(demo, model, texts[1]), "accessory") for model in (demo.model, patched)
    )
    assert plain.count("sunglasses") <= 1 and found.count("sunglasses") >= 8, (plain, found)
