"""Activation Patching: a run becomes another one, in the right rows, places and steps; the map says
which IDs do it.
"""

import pytest
import torch
from tapping import World, hooks_left

SPATIAL, TOKENS, OUT = "up-level1-repeat0-res-out", "up-level1-repeat0-vit-block0-out", "unet-out"
STEPS = 3


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


@pytest.fixture(scope="module")
def other_prompt(demo):
    return demo.app.run("CLIPTextEncode", clip=demo.clip, text="portrait, black hair, sunglasses")[
        0
    ]


def source_run(world, positive, ids, steps="all", rows="both", latent=None):
    model, recording = world.record(steps, rows, ids)
    return recording, world.sample(model, latent, positive=positive, steps=STEPS)


def patched(world, recording, latent, model=None, **changes):
    given = {"ids": "*", "patched_steps": "all", "strength": 1.0, **changes}
    return world.app.run(
        "GBX_ActivationPatching",
        model=model or world.model,
        recording=recording,
        latent=latent,
        **given,
    )


@pytest.mark.parametrize("changes", [{"strength": 0.0}, {"mask": torch.zeros(1, 8, 8)}])
def test_strength_0_and_an_empty_mask_are_bit_equal(demo, other_prompt, changes):
    model, report = patched(demo, *source_run(demo, other_prompt, SPATIAL), **changes)
    assert report.startswith("Nothing is patched")
    assert torch.equal(demo.sample(model)["samples"], demo.sample(demo.model)["samples"])


@pytest.mark.parametrize("ids", [SPATIAL, TOKENS, f"{SPATIAL}\n{TOKENS}"])
def test_a_run_patched_with_itself_is_bit_equal(demo, ids):
    recording, samples = source_run(demo, demo.positive, ids)
    assert torch.equal(
        demo.sample(patched(demo, recording, samples)[0])["samples"], samples["samples"]
    )


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m"])
def test_the_networks_output_makes_the_source_image(demo, other_prompt, sampler):
    """From the same noise, the patched run is the source's run, to the last bit."""
    model, recording = demo.record("all", "both", OUT)
    source = demo.sample(model, positive=other_prompt, sampler_name=sampler)
    result = demo.sample(patched(demo, recording, source)[0], sampler_name=sampler)["samples"]
    assert torch.equal(result, source["samples"])
    assert not torch.equal(result, demo.sample(demo.model, sampler_name=sampler)["samples"])


@pytest.mark.parametrize("id_", [SPATIAL, TOKENS])
@pytest.mark.parametrize(
    ("rows", "changed"), [("conditional", [0]), ("unconditional", [1]), ("both", [0, 1])]
)
def test_activations_are_mixed_in_the_recorded_rows(demo, other_prompt, id_, rows, changed):
    latent = demo.latent(1)
    runs = [source_run(demo, text, id_, latent=latent) for text in (other_prompt, demo.positive)]
    theirs, own = (demo.read(*run)[0].tensors[id_] for run in runs)
    model, _ = patched(
        demo, *source_run(demo, other_prompt, id_, rows=rows, latent=latent), strength=0.25
    )
    watching, seen = demo.record("0", "both", id_, model=model)
    found = demo.read(seen, demo.sample(watching, latent))[0].tensors[id_]
    expected = own.clone()
    expected[changed] = 0.75 * own[changed] + 0.25 * theirs[changed]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    assert hooks_left(demo.model) == 0


def test_a_mask_limits_the_area(demo, other_prompt):
    mask = torch.zeros(1, 128, 128)
    mask[:, :64] = 1
    runs = [source_run(demo, text, TOKENS) for text in (other_prompt, demo.positive)]
    theirs, own = (demo.read(*run)[0].tensors[TOKENS] for run in runs)
    watching, seen = demo.record("0", "both", TOKENS, model=patched(demo, *runs[0], mask=mask)[0])
    found = demo.read(seen, demo.sample(watching))[0].tensors[TOKENS]
    half = own.shape[2] // 2
    assert torch.equal(found[:, :, half:], own[:, :, half:])
    assert torch.equal(found[:, :, :half], theirs[:, :, :half])


def test_only_the_selected_steps_are_patched(demo, other_prompt):
    recording, samples = source_run(demo, other_prompt, OUT)
    model, report = patched(demo, recording, samples, patched_steps="last")
    watching, seen = demo.record("all", "both", OUT, model=model)
    patched_run = demo.sample(watching)
    plain_model, plain = demo.record("all", "both", OUT)
    plain_run = demo.sample(plain_model)
    same = [
        torch.equal(
            demo.read(seen, patched_run, step)[0].tensors[OUT],
            demo.read(plain, plain_run, step)[0].tensors[OUT],
        )
        for step in range(STEPS)
    ]
    assert same == [True, True, False]
    assert report.split() == ["Patched", "steps", "2", "of", "3.", OUT]


def test_one_recorded_image_patches_all(demo, other_prompt):
    recording, samples = source_run(demo, other_prompt, OUT, latent=demo.latent(1))
    result = demo.sample(patched(demo, recording, samples)[0], demo.latent(3))["samples"]
    assert len(result) == 3
    watching, seen = demo.record(
        "last", "conditional", OUT, model=patched(demo, recording, samples)[0]
    )
    tensor = demo.read(seen, demo.sample(watching, demo.latent(3)))[0].tensors[OUT]
    assert torch.equal(tensor[0], tensor[2])


def test_recordings_that_do_not_fit_are_refused(demo, other_prompt):
    recording, samples = source_run(demo, other_prompt, SPATIAL, steps="0")
    with pytest.raises(ValueError, match="No selected step was recorded: steps 0 of 3"):
        patched(demo, recording, samples, patched_steps="last")
    model, _ = patched(demo, recording, samples)
    with pytest.raises(ValueError, match="has 3 steps, and this one 5"):
        demo.sample(model, steps=5)
    with pytest.raises(
        ValueError, match="2 images of 8 x 8 positions, and this run has 2 images of 12 x 8"
    ):
        demo.sample(model, demo.latent(height=192))
    with pytest.raises(ValueError, match="2 images of 8 x 8 positions, and this run has 3 images"):
        demo.sample(model, demo.latent(3))
    with pytest.raises(ValueError, match="can be read but not changed"):
        patched(demo, *source_run(demo, other_prompt, "unet-in"))
    assert hooks_left(demo.model) == 0


def test_the_map_is_the_restored_fraction_of_each_id(demo, other_prompt):
    (latent,) = demo.app.run("EmptyLatentImage", width=128, height=128, batch_size=2)
    given = {
        "preset": "custom_ids",
        "ids": f"{SPATIAL}\n{OUT}",
        "patched_steps": "all",
        "precision": "fp32",
    }
    given |= {"seed": 7, "steps": STEPS, "cfg": 3.0, "negative": demo.negative, "latent": latent}
    figure, network, report, ids, found = demo.app.run(
        "GBX_PatchingMap",
        model=demo.model,
        source_positive=other_prompt,
        positive=demo.positive,
        **given,
    )
    source, target, partly, whole = found["samples"].split(2)
    assert torch.equal(whole, source)
    expected = 1 - (partly - source).square().sum() / (target - source).square().sum()
    lines = [line.split() for line in report.splitlines()]
    assert lines[0] == ["ID", "restored"] and lines[2] == [OUT, "1.000"]
    assert float(lines[1][1]) == pytest.approx(float(expected), abs=1e-3)
    assert ids.splitlines() == [OUT, SPATIAL]
    assert figure.shape[0] == network.shape[0] == 1
    with pytest.raises(ValueError, match="Both prompts give the same image"):
        demo.app.run(
            "GBX_PatchingMap",
            model=demo.model,
            source_positive=demo.positive,
            positive=demo.positive,
            **given,
        )
