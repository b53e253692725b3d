"""What the demo workflows of steering and patching show, on ten fixed seeds: the judge reads another image."""

import json

import pytest
import repository
import torch
from tapping import World

COUNT, STEPS = 10, 8
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(comfy):
    return World(comfy, *comfy.run("GBX_LoadDemoModel", weights="avatars-v2"))


@torch.inference_mode()
def sampled(demo, model, text):
    """Latents of the seeds 0 to 9."""
    noise = [torch.randn(1, 24, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(COUNT)]
    (positive,) = demo.comfy.run("CLIPTextEncode", clip=demo.clip, text=text)
    import comfy.sample

    blank = torch.zeros(COUNT, 24, 16, 16)
    return comfy.sample.sample(
        model, torch.cat(noise), STEPS, 3.0, "euler", "normal", positive, demo.negative, blank, disable_pbar=True
    )


@torch.inference_mode()
def read(demo, latents, attribute):
    """What the judge reads in each image."""
    judge = demo.comfy.module("nodes.demo.judge").load("avatars-v2")
    images = demo.vae.decode(latents)
    return [judge.labels[attribute][one] for one in judge(images.movedim(-1, 1).float())[attribute].argmax(-1).tolist()]


def node_of(workflow, type_):
    saved = json.loads((repository.ROOT / "workflows" / f"{workflow}.json").read_text("utf-8"))
    return next(node for node in saved["nodes"] if node["type"] == type_)


def test_the_steering_workflow_changes_the_skin(demo):
    toward, away, preset, ids, *_ = node_of("demo_activations_steering", "GBX_PromptSteeringDirection")[
        "widgets_values"
    ]
    strength = node_of("demo_activations_steering", "GBX_ActivationSteering")["widgets_values"][0]
    (latent,) = demo.comfy.run("EmptyLatentImage", width=128, height=128, batch_size=3)
    direction, _ = demo.comfy.run(
        "GBX_PromptSteeringDirection",
        model=demo.model,
        clip=demo.clip,
        latent=latent,
        toward_prompts=toward,
        away_prompts=away,
        preset=preset,
        ids=ids,
        recorded_steps="all",
        seed=1000,
        steps=STEPS,
        cfg=3.0,
    )
    given = {"start_percent": 0.0, "end_percent": 1.0, "rows": "conditional", "preserve_norm": False}
    (steered,) = demo.comfy.run(
        "GBX_ActivationSteering", model=demo.model, direction=direction, strength=strength, **given
    )
    text = toward.splitlines()[0].replace("black skin, ", "")
    plain, found = (read(demo, sampled(demo, model, text), "skin") for model in (demo.model, steered))
    assert "black" not in plain and found.count("black") >= 8, (plain, found)


def test_the_patching_workflow_brings_the_sunglasses(demo):
    texts = [
        f"portrait, light skin, short brown hair, shaven, {one}, smiling, blue hoodie, plain gray background"
        for one in ("sunglasses", "no glasses")
    ]
    model, recording = demo.record("all", "both", "*-vit-out")
    source = sampled(demo, model, texts[0])
    ids = node_of("demo_activations_patching", "GBX_ActivationPatching")["widgets_values"][0]
    (patched, _) = demo.comfy.run(
        "GBX_ActivationPatching",
        model=demo.model,
        recording=recording,
        latent={"samples": source},
        ids=ids,
        patched_steps="all",
        strength=1.0,
    )
    plain, found = (read(demo, sampled(demo, model, texts[1]), "accessory") for model in (demo.model, patched))
    assert plain.count("sunglasses") <= 1 and found.count("sunglasses") >= 8, (plain, found)
