"""Activation Recorder and Get Recorded Activations: bit-equal images, the right steps and rows, no
leaks.
"""

import pytest
import torch
from tapping import World, hooks_left
from torch.overrides import TorchFunctionMode


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_sde", "heun"])
def test_recorded_images_are_bit_equal(demo, sampler):
    recording_model, recording = demo.record(ids="*-out\n*-self-q")
    plain = demo.sample(demo.model, sampler_name=sampler)
    recorded = demo.sample(recording_model, sampler_name=sampler)
    assert torch.equal(plain["samples"], recorded["samples"])
    activations, step, report = demo.read(recording, recorded, -1)
    assert step == 2 and "Recorded steps 0, 1, 2 of 3" in report
    assert [(row.image, row.conditional) for row in activations.rows] == [
        (0, True),
        (1, True),
        (0, False),
        (1, False),
    ]
    assert hooks_left(demo.model) == 0


def test_a_large_run_says_after_its_first_step_what_it_will_keep(demo, monkeypatch, caplog):
    monkeypatch.setattr(demo.app.module("nodes.activations.recorder"), "_MUCH", 2**20)
    recording_model, recording = demo.record(ids="*-out\n*-self-q")
    activations, _, _ = demo.read(recording, demo.sample(recording_model), -1)
    kept = 3 * sum(tensor.nbytes for tensor in activations.tensors.values())
    assert kept > 2**20 and caplog.text.count(f"will keep {kept / 2**30:.1f} GiB, of 3 steps;") == 1
    demo.sample(demo.record(ids="*-out\n*-self-q", mean_only=True)[0])
    assert caplog.text.count("GiB, of one step:") == 1
    monkeypatch.undo()
    demo.sample(demo.record(ids="*-out")[0])
    assert caplog.text.count("will keep") == 2


def test_conditional_rows_of_a_recording_are_those_of_a_tap(demo):
    """The first step of a run sees the start noise; a tap at that noise level with that seed sees
    the same.
    """
    ids = "up-level1-repeat0-res-out"
    empty = {"samples": torch.zeros_like(demo.latent()["samples"])}
    recording_model, recording = demo.record("0", "conditional", ids)
    first, _, _ = demo.read(
        recording, demo.sample(recording_model, empty, scheduler="simple", denoise=0.5, steps=4)
    )
    tapped = demo.tap(ids, latent=empty, noise_unit="sigma", level=first.sigma, seed=7)
    assert (tapped.tensors[ids] - first.tensors[ids]).abs().max() < 1e-4 * first.tensors[
        ids
    ].abs().max()


class Reads(TorchFunctionMode):
    """Counts how often a number is fetched from a tensor, for which a GPU has to be waited for."""

    FETCHES = (
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.__float__,
        torch.Tensor.__int__,
        torch.Tensor.__bool__,
    )

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func in self.FETCHES
        return func(*args, **(kwargs or {}))


def test_a_recorder_fetches_one_number_per_evaluation(demo):
    """The noise level; besides, the schedule twice per run, and the timesteps of the recorded steps
    after it.
    """
    recording_model, _ = demo.record(ids="*-res-out")
    counts = []
    for model in (demo.model, demo.model, recording_model):  # the first one loads the model
        with Reads() as reads:
            demo.sample(model, steps=4)
        counts.append(reads.count)
    assert counts[2] - counts[1] <= 4 + 2 + 4


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpm_2", "dpmpp_2s_ancestral"])
def test_a_step_is_recorded_as_the_sampler_begins_it(demo, sampler):
    """Higher orders also evaluate ahead and between; the step's own evaluation is of x at its
    beginning.
    """
    import comfy.sample

    began = {}
    recording_model, recording = demo.record("all", "conditional", "unet-in")
    latent = demo.latent(1)["samples"]
    samples = comfy.sample.sample(
        recording_model,
        torch.randn_like(latent),
        4,
        3.0,
        sampler,
        "normal",
        demo.positive,
        demo.negative,
        latent,
        seed=1,
        callback=lambda step, denoised, x, steps: began.update({step: x.clone()}),
    )
    for step in range(4):
        activations, number, _ = demo.read(recording, {"samples": samples}, step)
        expected = began[step] / (activations.sigma**2 + 1) ** 0.5
        assert number == step
        assert (activations.tensors["unet-in"] - expected).abs().max() < 1e-5


def test_an_evaluation_after_the_main_one_is_left_out(demo):
    """Perturbed-Attention Guidance and its kind evaluate again, inside the same prediction."""
    import comfy.samplers

    recording_model, recording = demo.record("all", "conditional", "unet-in")

    def again(args):
        conds, options = [args["cond"]], args["model_options"]
        comfy.samplers.calc_cond_batch(
            args["model"], conds, args["input"] * 0, args["sigma"], options
        )
        return args["denoised"]

    guided = recording_model.clone()
    guided.set_model_sampler_post_cfg_function(again)
    activations, _, _ = demo.read(recording, demo.sample(guided))
    assert activations.tensors["unet-in"].abs().max() > 0


def test_samplercustomadvanced_is_recorded(demo):
    run, (recording_model, recording) = demo.app.run, demo.record("last")
    (guider,) = run(
        "CFGGuider", model=recording_model, positive=demo.positive, negative=demo.negative, cfg=3.0
    )
    (sigmas,) = run(
        "BasicScheduler", model=recording_model, scheduler="normal", steps=3, denoise=1.0
    )
    (sampler,), (noise,) = (
        run("KSamplerSelect", sampler_name="euler"),
        run("RandomNoise", noise_seed=1),
    )
    output, _ = run(
        "SamplerCustomAdvanced",
        noise=noise,
        guider=guider,
        sampler=sampler,
        sigmas=sigmas,
        latent_image=demo.latent(),
    )
    assert demo.read(recording, output)[1] == 2


def test_two_recorders_side_by_side(demo):
    first_model, first = demo.record("0", "conditional", "up-level0-repeat0-res-out")
    both, second = demo.record(
        "last", "unconditional", "up-level1-repeat0-vit-block0-self-q", model=first_model
    )
    samples = demo.sample(both)
    one, step_one, _ = demo.read(first, samples)
    two, step_two, _ = demo.read(second, samples)
    assert (list(one.tensors), step_one) == (["up-level0-repeat0-res-out"], 0)
    assert (list(two.tensors), step_two) == (["up-level1-repeat0-vit-block0-self-q"], 2)
    assert {row.conditional for row in one.rows} == {True} and {
        row.conditional for row in two.rows
    } == {False}


def test_a_recording_belongs_to_its_latent(demo):
    recording_model, recording = demo.record("last")
    first, second = (demo.sample(recording_model, seed=seed) for seed in (1, 2))
    assert not torch.equal(
        *(next(iter(demo.read(recording, one)[0].tensors.values())) for one in (first, second))
    )
    with pytest.raises(ValueError, match="No recorded run produced this latent"):
        demo.read(recording, demo.latent())


def test_a_recorder_that_was_made_again_finds_what_the_result_keeps(demo):
    """With --cache-lru ComfyUI may keep a sampler's result and make its recorder again, which knows
    of no run.
    """
    model, recording = demo.record("0,2")
    samples = demo.sample(model)
    before, *_ = demo.read(recording, samples)
    del model, recording
    again, *_ = demo.read(demo.record("0,2")[1], samples)
    assert all(torch.equal(value, again.tensors[id_]) for id_, value in before.tensors.items())
    copied = {"samples": samples["samples"].clone()}
    for recorder, latent in ((demo.record("0,1")[1], samples), (demo.record("0,2")[1], copied)):
        with pytest.raises(
            ValueError,
            match=r"has no run: .* kept the sampler's result .* change the sampler's seed",
        ):
            demo.read(recorder, latent)


def test_a_canceled_run_leaves_nothing(demo):
    from comfy.model_management import InterruptProcessingException

    recording_model, recording = demo.record()
    kept = demo.sample(recording_model)
    calls, canceled = [], recording_model.clone()

    def stop(apply_model, given):
        calls.append(1)
        if len(calls) == 2:
            apply_model(given["input"], given["timestep"], **given["c"])
            raise InterruptProcessingException
        return apply_model(given["input"], given["timestep"], **given["c"])

    canceled.set_model_unet_function_wrapper(stop)
    with pytest.raises(InterruptProcessingException):
        demo.sample(canceled, seed=8)
    assert hooks_left(demo.model) == 0
    assert [run.latent.tolist() for run in recording._runs] == [kept["samples"].tolist()]
    assert not recording._snapshots and recording._calls is None
    assert torch.equal(demo.sample(recording_model)["samples"], kept["samples"])


def test_reading_an_empty_record_raises(demo):
    recording_model, recording = demo.record(rows="unconditional")
    samples = demo.sample(recording_model, cfg=1.0)
    with pytest.raises(ValueError, match="Nothing was recorded in this run of 3 steps"):
        demo.read(recording, samples)
    recording_model, recording = demo.record("last")
    with pytest.raises(ValueError, match="There is no recorded step 1: the run has 1"):
        demo.read(recording, demo.sample(recording_model), 1)
