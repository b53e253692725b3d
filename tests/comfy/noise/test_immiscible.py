"""The noise family inside a real ComfyUI: stock noise where nothing moves, and exactly the assigned
noise elsewhere.
"""

import re
import threading

import pytest
import torch

SEED = 123456789012345678


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def latent(*shape, **keys):
    return {"samples": 5 * gaussian(*(shape or (5, 4, 8, 8))), **keys}


@pytest.fixture
def random_noise(app):
    return app.run("RandomNoise", noise_seed=SEED)[0]


@pytest.fixture
def immiscible(app, random_noise):
    """Immiscible Noise with its defaults; keywords replace them."""

    def run(latent, **changed):
        given = {
            "noise": random_noise,
            "pairing": "assign",
            "cost": "dot_product",
            "pool_size": 20,
            "pool_index": 0,
            "k": 4.0,
            "nearest_form": "closed_form",
            "grouping": "ignore",
            "labels": "",
            "penalty": 1.0,
        }
        return app.run("GBX_ImmiscibleNoise", latent=latent, **(given | changed))

    return run


@pytest.fixture
def latent_batch(app):
    """Immiscible Latent Batch with its defaults; keywords replace them."""

    def run(latent, **changed):
        given = {
            "seed": SEED,
            "pairing": "assign",
            "cost": "dot_product",
            "pool_size": 20,
            "pool_index": 0,
            "k": 4,
            "grouping": "ignore",
            "labels": "",
            "penalty": 1.0,
        }
        return app.run("GBX_ImmiscibleLatentBatch", latent=latent, **(given | changed))

    return run


def stock(samples, numbers=None, seed=SEED):
    """The noise that KSampler draws."""
    import comfy.sample

    return comfy.sample.prepare_noise(samples, seed, numbers)


def numbers_of(permutation: str) -> list[int]:
    return [int(number) for number in permutation.split(",")]


def state_after(call):
    """What `call` returns, and the global generator's next number after it."""
    torch.manual_seed(77)
    return call(), float(torch.rand(()))


def test_off_returns_the_input_noise(immiscible, random_noise):
    noise, permutation, report, figure = immiscible(latent(), pairing="off")
    assert noise is random_noise
    assert numbers_of(permutation) == list(range(5))
    assert "noise as drawn" in report
    assert (
        figure.shape[0] == 1 and figure.shape[-1] == 3 and figure.min() >= 0 and figure.max() <= 1
    )


@pytest.mark.parametrize(
    "choices",
    [
        {"pairing": "nearest", "k": 1.0},
        {"pairing": "nearest", "k": 1.0, "nearest_form": "dot_product"},
        {"pairing": "nearest", "k": 1.0, "nearest_form": "official"},
    ],
    ids=lambda choices: choices.get("nearest_form", "closed_form"),
)
def test_k_of_one_is_stock(immiscible, choices):
    given = latent()
    noise = immiscible(given, **choices)[0]
    assert torch.equal(noise.generate_noise(given), stock(given["samples"]))


@pytest.mark.parametrize("mode", ["assign", "pool", "nearest"])
@pytest.mark.parametrize(
    "samples", [torch.zeros(4, 4, 8, 8), torch.full((4, 4, 8, 8), 0.0609)], ids=["zeros", "sd3"]
)
def test_empty_latents_are_stock(immiscible, latent_batch, mode, samples):
    given = {"samples": samples}
    noise, _, report, _ = immiscible(given, pairing=mode)
    assert torch.equal(noise.generate_noise(given), stock(samples))
    assert "No gain" in report
    assert "batch_index" not in latent_batch(given, pairing=mode)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "shape", [(5, 4, 8, 8), (3, 4, 2, 4, 4), (4, 8, 16)], ids=["image", "video", "sound"]
)
def test_assigned_noise_is_stock_noise_in_another_order(immiscible, dtype, shape):
    samples = (5 * gaussian(*shape)).to(dtype)
    noise, permutation, _, _ = immiscible({"samples": samples})
    drawn, made = stock(samples), noise.generate_noise({"samples": samples})
    assert made.dtype == dtype
    assert sorted(numbers_of(permutation)) == list(range(len(samples)))
    assert torch.equal(made, drawn[numbers_of(permutation)])


def test_latents_that_are_not_contiguous(immiscible):
    given = {"samples": (5 * gaussian(5, 8, 4, 8)).transpose(1, 2)}
    noise, permutation, *_ = immiscible(given)
    assert torch.equal(
        noise.generate_noise(given), stock(given["samples"])[numbers_of(permutation)]
    )


@pytest.mark.parametrize(
    "choices", [{"pairing": "assign"}, {"pairing": "pool", "pool_index": 2}], ids=["assign", "pool"]
)
@pytest.mark.parametrize(
    "given", [{}, {"batch_index": [4, 9, 2, 7, 5]}], ids=["plain", "with numbers"]
)
def test_batch_index_makes_a_stock_sampler_draw_the_same_noise(
    immiscible, latent_batch, choices, given
):
    given = latent(**given)
    noise, permutation, *_ = immiscible(given, **choices)
    assert numbers_of(permutation) != given.get("batch_index", list(range(5)))
    batch, seed, same, *_ = latent_batch(given, **choices)
    assert (seed, same) == (SEED, permutation)
    assert batch["batch_index"] == numbers_of(permutation)
    assert torch.equal(stock(batch["samples"], batch["batch_index"]), noise.generate_noise(given))


def test_official_nearest_by_batch_index(immiscible, latent_batch):
    given = latent()
    noise, permutation, *_ = immiscible(given, pairing="nearest", nearest_form="official", k=8.0)
    batch = latent_batch(given, pairing="nearest", k=8)[0]
    assert batch["batch_index"] == numbers_of(permutation)
    assert torch.equal(stock(given["samples"], batch["batch_index"]), noise.generate_noise(given))


def test_sizes_that_are_no_multiple_of_16(app, latent_batch):
    """There the noise of a batch is not that of its images; what is assigned is what KSampler then
    draws.
    """
    given = latent(6, 3, 5, 7)
    batch, _, _, report, _ = latent_batch(given)
    drawn = stock(given["samples"], batch["batch_index"])
    after = (given["samples"] - drawn).flatten(1).norm(dim=1).mean()
    assert f"after {after:.3f}" in report


def test_the_batch_keeps_its_other_keys_and_the_input_is_not_changed(latent_batch):
    given = latent(noise_mask=torch.ones(1, 1, 64, 64), type="audio")
    batch = latent_batch(given)[0]
    assert "batch_index" not in given
    assert (
        batch["samples"] is given["samples"] and batch["type"] == "audio" and "noise_mask" in batch
    )


def test_a_single_image_again(app, latent_batch):
    batch, seed, *_ = latent_batch(latent())
    alone = app.run("LatentFromBatch", samples=batch, batch_index=2, length=1)[0]
    whole = stock(batch["samples"], batch["batch_index"], seed)
    assert torch.equal(stock(alone["samples"], alone["batch_index"], seed)[0], whole[2])


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"pairing": "pool"},
        {"pairing": "nearest"},
        {"pairing": "nearest", "nearest_form": "official"},
    ],
)
def test_the_global_generator_is_left_as_stock_leaves_it(
    immiscible, latent_batch, app, random_noise, choices
):
    given = latent()
    (noise, *_), after_node = state_after(lambda: immiscible(given, **choices))
    assert after_node == state_after(lambda: None)[1]
    assert (
        state_after(lambda: noise.generate_noise(given))[1]
        == state_after(lambda: random_noise.generate_noise(given))[1]
    )
    if "nearest_form" not in choices:
        assert state_after(lambda: latent_batch(given, **choices))[1] == after_node


def test_the_mask_weighs_the_distance(immiscible):
    """With a mask on the left half the pairing is that of the left halves."""
    mask = torch.zeros(1, 1, 64, 64)
    mask[..., :32] = 1
    given = latent(6, 4, 8, 8, noise_mask=mask)
    permutation = numbers_of(immiscible(given)[1])
    drawn, left = stock(given["samples"]), slice(0, 4)
    product = (given["samples"][..., left].flatten(1) @ drawn[..., left].flatten(1).T).double()
    from scipy.optimize import linear_sum_assignment

    best = linear_sum_assignment(-product.numpy())[1]
    best_sum = product[torch.arange(6), torch.from_numpy(best)].sum()
    own_sum = product[torch.arange(6), torch.tensor(permutation)].sum()
    assert own_sum == pytest.approx(
        float(best_sum), rel=0.02
    )  # the mask is soft where it is scaled down


def test_masks_of_a_video_and_of_each_image(immiscible):
    for shape, mask in (
        ((3, 4, 2, 8, 8), torch.rand(2, 64, 64)),
        ((3, 4, 8, 8), torch.rand(3, 64, 64)),
    ):
        given = latent(*shape, noise_mask=mask)
        assert sorted(numbers_of(immiscible(given)[1])) == [0, 1, 2]


def test_latents_of_several_parts(immiscible, latent_batch):
    from comfy.nested_tensor import NestedTensor

    samples = NestedTensor([5 * gaussian(4, 4, 8, 8), gaussian(4, 2, 16, seed=3)])
    noise, permutation, *_ = immiscible({"samples": samples})
    made, drawn = noise.generate_noise({"samples": samples}), stock(samples)
    for part, expected in zip(made.unbind(), drawn.unbind(), strict=True):
        assert torch.equal(part, expected[numbers_of(permutation)])
    batch = latent_batch({"samples": samples}, pairing="pool")[0]
    assert stock(samples, batch["batch_index"]).unbind()[0].shape == (4, 4, 8, 8)


def test_any_noise_can_be_wrapped(app, immiscible):
    silent = app.run("DisableNoise")[0]
    given = latent()
    for mode in ("assign", "pool", "nearest"):
        assert not immiscible(given, noise=silent, pairing=mode)[0].generate_noise(given).any()


def test_the_model_brings_latents_to_its_scale(app, immiscible):
    """Without a model, nearest takes raw latents for stronger than they are to the model."""
    model = app.run("GBX_LoadDemoModel", weights="avatars-v2")[0]
    given = {"samples": 3 * gaussian(4, 24, 16, 16) + 1}
    seen = []
    real = model.get_model_object("process_latent_in")
    model.add_object_patch(
        "process_latent_in", lambda samples: seen.append(samples) or real(samples)
    )
    report = immiscible(given, model=model, pairing="nearest", k=8.0)[2]
    assert seen and torch.equal(seen[0], given["samples"])
    expected = (real(given["samples"]) - stock(given["samples"])).flatten(1).norm(dim=1).mean()
    assert f"before {expected:.3f}" in report


def test_the_demo_model_generates_the_same_with_the_wrapper_and_with_the_batch_index(
    app, immiscible, latent_batch
):
    model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    positive, negative = (
        app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("blue hoodie", "")
    )
    given = {"samples": gaussian(3, 24, 16, 16)}

    def advanced(noise):
        guider = app.run("CFGGuider", model=model, positive=positive, negative=negative, cfg=3.0)[0]
        sampler = app.run("KSamplerSelect", sampler_name="euler")[0]
        sigmas = app.run("BasicScheduler", model=model, scheduler="normal", steps=2, denoise=0.6)[0]
        return app.run(
            "SamplerCustomAdvanced",
            noise=noise,
            guider=guider,
            sampler=sampler,
            sigmas=sigmas,
            latent_image=given,
        )[0]["samples"]

    def ksampler(latent_image):
        how = {
            "steps": 2,
            "cfg": 3.0,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 0.6,
        }
        return app.run(
            "KSampler",
            model=model,
            seed=SEED,
            positive=positive,
            negative=negative,
            latent_image=latent_image,
            **how,
        )[0]["samples"]

    off, assigned = (immiscible(given, pairing=mode)[0] for mode in ("off", "assign"))
    plain = ksampler(given)
    assert torch.equal(advanced(off), plain)
    assert torch.equal(advanced(assigned), ksampler(latent_batch(given)[0]))
    assert not torch.equal(advanced(assigned), plain)


ESTIMATE = {"gain_batch_size": 4, "pool_size": 16, "k": 4.0}


def test_the_report_estimates_what_a_training_gains(immiscible):
    given = latent(8, 4, 8, 8)
    plain = immiscible(given, pool_size=16)
    _, numbers, report, figure = immiscible(given, **ESTIMATE)
    assert numbers == plain[1] and figure.shape[0] == 2 and plain[3].shape[0] == 1
    assert torch.equal(figure[:1], plain[3])
    # of the rest of the report, the milliseconds alone differ
    assert plain[2].splitlines()[:2] == report.splitlines()[:2]
    assert "8 images of 1 size(s)" in report and "Estimated gain" not in plain[2]
    batch, pool, nearest = (
        float(re.search(rf"{name}: ([-\d.]+) %", report)[1])
        for name in ("batches of 4", "pool of 16", "nearest of 4")
    )
    assert 0 < batch < pool and nearest > 0
    again = immiscible(given, **ESTIMATE)[2]
    assert again.partition("Estimated gain")[2] == report.partition("Estimated gain")[2]
    assert state_after(lambda: immiscible(given, **ESTIMATE))[1] == state_after(lambda: None)[1]


def test_the_estimate_stops_while_it_assigns(app, immiscible, monkeypatch):
    """A pool of thousands takes one call of many seconds: Stop must not wait for it."""
    from comfy import model_management

    module = app.module("nodes.noise.gain")
    begun, go_on = threading.Event(), threading.Event()

    def long(buckets, size, generator):
        begun.set()
        assert go_on.wait(60)

    monkeypatch.setattr(module, "estimate_assignment", long)
    stopper = threading.Thread(
        target=lambda: begun.wait(60) and model_management.interrupt_current_processing()
    )
    stopper.start()
    try:
        with pytest.raises(model_management.InterruptProcessingException):
            immiscible(latent(), **ESTIMATE)
    finally:
        go_on.set()
        stopper.join()


def test_the_estimate_says_when_there_is_nothing(immiscible):
    report = immiscible({"samples": torch.zeros(4, 4, 8, 8)}, **ESTIMATE)[2]
    gains = report.partition("Estimated gain")[2]
    assert gains.count(": 0.00 %") == 3
    assert "the latents are empty" in gains


@pytest.mark.parametrize(
    ("given", "choices", "sentence"),
    [
        ({"batch_index": [0, 1]}, {}, "holds 5 images but its batch_index names 2"),
        ({}, {"grouping": "penalty", "labels": "a\nb"}, "5 images and the labels have 2 lines"),
        ({}, {"pairing": "nearest", "k": 2.5}, "needs an integer k"),
    ],
)
def test_bad_input_raises_one_sentence(immiscible, given, choices, sentence):
    with pytest.raises(ValueError, match=sentence):
        immiscible(latent(**given), **choices)


def test_a_latent_is_blank_where_each_channel_has_one_value(app):
    """An empty latent of SD3 or Flux has a value of its own in each channel; a latent of single
    positions never is.
    """
    view = app.module("nodes.host.latent_shapes").view
    values = torch.arange(4.0)[None, :, None, None]
    samples = torch.cat([values.expand(1, 4, 8, 6), torch.zeros(1, 4, 8, 6), gaussian(1, 4, 8, 6)])
    samples = torch.cat([samples, samples[:1]])
    samples[3, 2, 7, 5] += 0.01
    assert view({"samples": samples}, None).blank.tolist() == [True, True, False, False]
    assert view({"samples": values}, None).blank.tolist() == [False]
