"""Through ComfyUI's own queue: without a cache, again and again, and with a ControlNet on the
conditioning.
"""

import checkpoint_runs
import newer
import pytest
import reduced
import torch
from tapping import World, hooks_left

IDS = "up-level1-repeat0-res-out"
PROMPT = {
    "model": ("GBX_LoadDemoModel", {"weights": "avatars-v2"}),
    "record": (
        "GBX_ActivationRecorder",
        {
            "model": ["model", 0],
            "preset": "custom_ids",
            "ids": IDS,
            "pool_size": 1,
            "recorded_steps": "last",
            "rows": "conditional",
            "precision": "fp16",
        },
    ),
    "text": ("CLIPTextEncode", {"clip": ["model", 1], "text": "portrait"}),
    "latent": ("EmptyLatentImage", {"width": 128, "height": 128, "batch_size": 1}),
    "sample": (
        "KSampler",
        {
            "model": ["record", 0],
            "positive": ["text", 0],
            "negative": ["text", 0],
            "latent_image": ["latent", 0],
            "seed": 1,
            "steps": 2,
            "cfg": 1.0,
            "denoise": 1.0,
            "sampler_name": "euler",
            "scheduler": "normal",
        },
    ),
    "read": (
        "GBX_ReadActivations",
        {"recording": ["record", 1], "latent": ["sample", 0], "step_index": 0},
    ),
    "save": (
        "GBX_SaveActivations",
        {"activations": ["read", 0], "filename_prefix": "queue/features"},
    ),
}


@pytest.fixture(params=["CLASSIC", "NONE", "RAM_PRESSURE"])
def queue(app, request):
    """Runs the prompt with changes in one executor, as ComfyUI does when a person queues again and
    again.
    """
    executor = newer.executor(request.param)

    def run(**changes):
        prompt = {
            name: {"class_type": kind, "inputs": {**inputs, **changes.get(name, {})}}
            for name, (kind, inputs) in PROMPT.items()
        }
        executor.execute(prompt, "test", {}, ["save"])
        assert executor.success, [
            data for kind, data in executor.status_messages if kind == "execution_error"
        ]

    return run


def saved(app, number):
    return app.run("GBX_LoadActivations", file=f"queue/features_{number:05}_.safetensors")[0]


def test_queueing_again(app, queue, tmp_path, monkeypatch):
    import folder_paths

    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    queue()
    queue(save={"filename_prefix": "queue/features "})
    queue(sample={"seed": 2})
    queue(read={"step_index": -1}, sample={"seed": 1})
    first, again = (
        saved(app, 1),
        app.run("GBX_LoadActivations", file="queue/features _00001_.safetensors")[0],
    )
    other, back = saved(app, 2), saved(app, 3)
    assert torch.equal(again.tensors[IDS], first.tensors[IDS]) and torch.equal(
        back.tensors[IDS], first.tensors[IDS]
    )
    assert not torch.equal(other.tensors[IDS], first.tensors[IDS])


@pytest.fixture(scope="module")
def controlled(app):
    """A reduced SD1.5 and a conditioning with a random ControlNet of the same sizes."""
    from comfy import controlnet, ops
    from comfy.cldm.cldm import ControlNet

    world = World(app, *reduced.checkpoint("sd15"))
    config = {
        key: value
        for key, value in world.model.model.model_config.unet_config.items()
        if key not in ("out_channels", "transformer_depth_output", "disable_unet_model_creation")
    }
    with torch.inference_mode(False), torch.no_grad():
        network = ControlNet(**config, hint_channels=3, operations=ops.manual_cast, device="cpu")
        reduced.fill(network, torch.Generator().manual_seed(1))
    control = controlnet.ControlNet(
        network, load_device=torch.device("cpu"), manual_cast_dtype=torch.float32
    )
    hint = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(2))
    positive, _ = app.run(
        "ControlNetApplyAdvanced",
        positive=world.positive,
        negative=world.negative,
        image=hint,
        control_net=control,
        strength=1.0,
        start_percent=0.0,
        end_percent=1.0,
    )
    return world, positive


def test_a_controlnet_takes_part(controlled):
    """It adds to the skip connections: the down-stage stays, the up-stage changes; recording still
    changes nothing.
    """
    world, positive = controlled
    ids, latent = "down-level3-repeat1-res-out\nup-level0-repeat0-res-out", world.latent(1, 64, 64)
    plain = world.tap(ids, latent=latent).tensors
    guided = world.tap(ids, latent=latent, positive=positive).tensors
    down, up = ids.split("\n")
    assert torch.equal(guided[down], plain[down]) and not torch.equal(guided[up], plain[up])
    recording_model, _ = world.record(ids=ids, rows="conditional")
    given = {"latent": latent, "positive": positive, "negative": positive}
    generated, recorded = world.sample(world.model, **given), world.sample(recording_model, **given)
    assert torch.equal(generated["samples"], recorded["samples"])
    assert not torch.equal(generated["samples"], world.sample(world.model, latent)["samples"])
    assert hooks_left(world.model) == 0


@pytest.mark.parametrize("architecture", ["sd15", "flux"])
def test_the_check_of_a_checkpoint(app, monkeypatch, tmp_path, architecture):
    """What `run.py check` runs of this family, on random weights of a U-Net and of a
    transformer.
    """
    from tools.launcher import check

    prompt = check.activations("mine.safetensors")
    known = {
        entry["class_type"]: described(app.classes[entry["class_type"]])
        for entry in prompt.values()
    }
    prompt = checkpoint_runs.cut(check.completed(prompt, known))
    if architecture == "flux":
        prompt["4"]["class_type"] = "EmptySD3LatentImage"
    checkpoint_runs.offer_files(prompt, tmp_path)
    checkpoint_runs.swap_loaders(monkeypatch, architecture)
    made = checkpoint_runs.execute(prompt)
    shown = [number for number, node in prompt.items() if node["class_type"] == "PreviewImage"]
    assert len(shown) == 4 and all(made[number]["images"] for number in shown)


def described(node):
    return (
        node.GET_NODE_INFO_V1()
        if hasattr(node, "GET_NODE_INFO_V1")
        else {"input": node.INPUT_TYPES()}
    )
