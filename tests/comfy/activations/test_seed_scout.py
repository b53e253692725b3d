"""Seed Scout inside a real ComfyUI: the same noise and images as a stock KSampler, and the scores
of its rankings.
"""

import pytest
import reduced
import torch
from tapping import World, hooks_left

PROMPT = "portrait, red hair"
SEED = 40


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def empty(world, side=16):
    return {
        "samples": torch.zeros(
            1, world.model.get_model_object("latent_format").latent_channels, side, side
        )
    }


def scout(world, **changes):
    given = {
        "ranking": "word_coverage",
        "prompt": PROMPT,
        "words": "",
        "seed": SEED,
        "count": 3,
        "keep": 2,
    }
    more = {"steps": 2, "cfg": 2.0, "batch_size": 2, "clip": world.clip, "latent": empty(world)}
    wires = {
        "model": world.model,
        "positive": world.positive,
        "negative": world.negative,
        "vae": world.vae,
    }
    return world.app.run("GBX_SeedScout", **{**given, **more, **wires, **changes})


def ksampler(world, seed):
    samples = world.sample(world.model, empty(world), seed=seed, steps=2, cfg=2.0)
    return world.app.run("VAEDecode", samples=samples, vae=world.vae)[0]


def test_the_seeds_give_a_stock_ksampler_the_scouted_images(demo):
    """One seed at a time, bit for bit; ``images`` are in the order of the scores."""
    seeds, images, figure, report, drawn = scout(demo, batch_size=1)
    assert [noise.seed for noise in drawn] == seeds
    assert len(seeds) == 2 and len(images) == 3 and figure.shape[0] == 1
    for seed, image in zip(seeds, images, strict=False):
        assert torch.equal(ksampler(demo, seed)[0], image)
    assert [
        f"seed {seed} " in line for seed, line in zip(seeds, report.splitlines()[1:], strict=False)
    ] == [True, True]
    assert hooks_left(demo.model) == 0


def test_in_batches_every_seed_starts_from_ksamplers_noise(demo, monkeypatch):
    import comfy.sample

    stock, started = comfy.sample.sample, []

    def sample(model, noise, *args, **kwargs):
        started.extend(noise)
        return stock(model, noise, *args, **kwargs)

    monkeypatch.setattr(comfy.sample, "sample", sample)
    scout(demo, count=3, ranking="layout_likeness", reference=torch.rand(1, 64, 64, 3))
    for number, noise in enumerate(started):
        assert torch.equal(
            noise, comfy.sample.prepare_noise(empty(demo)["samples"], SEED + number)[0]
        )
    assert len(started) == 3


def test_coverage_is_that_of_recorded_heat_maps(demo):
    """Token Heat Map's own maps of two KSampler runs, unnormalized, for two words."""
    report = scout(demo, words="red\nhair", count=2)[3]
    module = demo.app.module("nodes.activations.token_heatmap")
    coverage = demo.app.module("nodes.activations.seed_scout").word_coverage
    maps = {"red": [], "hair": []}
    for seed in (SEED, SEED + 1):
        model, recording = demo.record("all", "conditional", "attn-mean")
        samples = demo.sample(model, empty(demo), seed=seed, steps=2, cfg=2.0)
        activations = demo.app.run(
            "GBX_ReadActivations", recording=recording, latent=samples, step_index=0, average=True
        )[0]
        for word, position in (("red", 3), ("hair", 4)):  # begin, portrait, comma, red, hair
            maps[word].append(module.heat_map(activations.tensors["attn-mean"], [position], 77))
    expected = coverage({word: torch.cat(two) for word, two in maps.items()})
    for line in report.splitlines()[1:]:
        seed, score, word = line.split()[2:5]
        assert float(score) == pytest.approx(float(expected.values[int(seed) - SEED]), abs=1e-3)
        assert word == expected.notes[int(seed) - SEED]


@pytest.mark.parametrize("ranking", ["layout_likeness", "image_likeness"])
def test_the_reference_itself_is_first(demo, ranking):
    reference = ksampler(demo, SEED + 2)
    seeds, images, _, report, _ = scout(demo, ranking=ranking, reference=reference)
    assert seeds[0] == SEED + 2 and (images[0] - reference[0]).abs().max() < 1e-3
    assert float(report.splitlines()[1].split()[3]) == pytest.approx(1, abs=1e-3)


def test_clip_vision_and_prompt_alignment_score_images(demo):
    class Vision:
        def encode_image(self, images):
            return {"image_embeds": images.mean((1, 2))}

    reference = ksampler(demo, SEED + 1)
    assert (
        scout(demo, ranking="image_likeness", reference=reference, clip_vision=Vision())[0][0]
        == SEED + 1
    )
    report = scout(demo, ranking="prompt_alignment")[3]
    assert report.startswith("Ranked by fraction of the 1 requested attributes")


def test_the_seeds_that_differ_most_come_first(demo):
    """By the demo's own judge, by CLIP_VISION, and by layout and colors without either."""

    class Vision:
        def encode_image(self, images):
            return {"image_embeds": images.flatten(1)[:, ::97]}

    judged = scout(demo, ranking="diversity")
    assert judged[3].startswith("Ranked by distance to the nearest seed above, by embeddings")
    assert "by embeddings" in scout(demo, ranking="diversity", clip_vision=Vision())[3]
    _, images, *_, report, _ = scout(demo, ranking="diversity", clip=None)
    assert "by layout and colors" in report
    scores = [float(line.split()[3]) for line in report.splitlines()[1:]]
    assert scores == sorted(scores, reverse=True) and scores[0] > scores[-1]
    flat = demo.app.module("nodes.activations.seed_scout").layout_vectors(images)
    unit = torch.nn.functional.normalize(flat, dim=1)
    assert float(torch.cdist(unit, unit).max()) == pytest.approx(
        float((unit[0] - unit[1]).norm()), abs=1e-4
    )


def test_joint_attention_of_flux_is_covered(app):
    world = World(app, *reduced.checkpoint("flux"))
    seeds, images, _, report, _ = scout(
        world, latent=empty(world, 8), count=2, keep=1, steps=1, cfg=1.0
    )
    assert (
        len(seeds) == 1 and images.shape == (2, 64, 64, 3) and "focus of the weakest word" in report
    )


def composed(world, seed, **changes):
    """Composition Noise after a guide, over Random Noise."""
    guide = {"samples": torch.randn(1, 24, 16, 16, generator=torch.Generator().manual_seed(3))}
    noise = world.app.run("RandomNoise", noise_seed=seed)[0]
    given = {
        "latent": empty(world),
        "guide": guide,
        "seed": 1,
        "strength": 0.8,
        "cutoff": 2.0,
        "low_cutoff": 0.0,
    }
    return world.app.run("GBX_CompositionNoise", **{**given, "noise": noise, **changes})[0]


def test_what_is_scouted_of_a_noise_is_what_is_sampled(demo):
    """Composition Noise is scouted from its own seed on, and the noise of the best is sampled to
    the same image.
    """
    first = SEED + 5
    before = torch.get_rng_state()
    _, images, _, report, drawn = scout(demo, noise=composed(demo, first), batch_size=1)
    assert torch.equal(torch.get_rng_state(), before)
    best = [int(line.split()[2]) for line in report.splitlines()[1:]]
    assert (
        sorted(best) == [first, first + 1, first + 2]
        and [noise.seed for noise in drawn] == best[:2]
    )
    for seed, noise, image in zip(best, drawn, images, strict=False):
        found = noise.generate_noise(empty(demo))
        assert torch.equal(found, composed(demo, seed).generate_noise(empty(demo)))
        assert not torch.equal(found, composed(demo, first + 7).generate_noise(empty(demo)))
        given = {
            "model": demo.model,
            "positive": demo.positive,
            "negative": demo.negative,
            "cfg": 2.0,
        }
        guider = demo.app.run("CFGGuider", **given)[0]
        sampler = demo.app.run("KSamplerSelect", sampler_name="euler")[0]
        sigmas = demo.app.run(
            "BasicScheduler", model=demo.model, scheduler="normal", steps=2, denoise=1.0
        )[0]
        wires = {
            "noise": noise,
            "guider": guider,
            "sampler": sampler,
            "sigmas": sigmas,
            "latent_image": empty(demo),
        }
        samples = demo.app.run("SamplerCustomAdvanced", **wires)[0]
        assert torch.equal(demo.app.run("VAEDecode", samples=samples, vae=demo.vae)[0][0], image)


def test_noise_that_follows_no_seed_is_refused(demo):
    disabled = demo.app.run("DisableNoise")[0]
    with pytest.raises(ValueError, match="does not follow a seed"):
        scout(demo, noise=disabled)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clip": None}, "word_coverage needs clip"),
        ({"words": "hat"}, "'hat' is not in the prompt"),
        ({"ranking": "image_likeness"}, "image_likeness needs reference"),
        ({"ranking": "prompt_alignment", "prompt": ""}, "there is no prompt"),
        ({"latent": {"samples": torch.zeros(4, 24, 16, 16)}}, "latent holds 4 images"),
    ],
)
def test_bad_input_is_one_sentence(demo, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        scout(demo, **changes)


def test_image_likeness_without_an_eye(demo):
    with pytest.raises(ValueError, match="image_likeness needs clip_vision"):
        scout(demo, ranking="image_likeness", reference=torch.rand(1, 64, 64, 3), clip=None)
