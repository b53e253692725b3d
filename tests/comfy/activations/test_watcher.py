"""A recorder never ends a run: what cannot be recorded is skipped, and Get Recorded Activations
says why.
"""

import uuid

import pytest
import tiny_transformers
import torch
from tapping import PATTERN, World, hooks_left


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def guided(demo, model, node_id, **conditionings):
    """The latent of SamplerCustomAdvanced with a guider of three conditionings."""
    run = demo.app.run
    (guider,) = run(node_id, model=model, **conditionings)
    (sigmas,) = run("BasicScheduler", model=model, scheduler="normal", steps=2, denoise=1.0)
    (sampler,), (noise,) = (
        run("KSamplerSelect", sampler_name="euler"),
        run("RandomNoise", noise_seed=1),
    )
    return run(
        "SamplerCustomAdvanced",
        noise=noise,
        guider=guider,
        sampler=sampler,
        sigmas=sigmas,
        latent_image=demo.latent(1),
    )[0]


def text(demo, words):
    return demo.app.run("CLIPTextEncode", clip=demo.clip, text=words)[0]


@pytest.mark.parametrize("recorder_first", [True, False])
def test_steps_that_easycache_skips_are_not_recorded(demo, recorder_first):
    """Its wrapper returns a cached output, and no module is called."""

    def cached(model):
        given = {
            "reuse_threshold": 10.0,
            "start_percent": 0.2,
            "end_percent": 0.9,
            "verbose": False,
        }
        return demo.app.run("EasyCache", model=model, **given)[0]

    base = demo.model if recorder_first else cached(demo.model)
    model, recording = demo.record("all", "conditional", "up-level1-repeat0-res-out", model=base)
    model = cached(model) if recorder_first else model
    plain, recorded = demo.sample(cached(demo.model), steps=8), demo.sample(model, steps=8)
    assert torch.equal(plain["samples"], recorded["samples"])
    _, _, report = demo.read(recording, recorded)
    assert report.splitlines()[0].startswith("Recorded steps 0") and "Not recorded: steps" in report
    assert hooks_left(demo.model) == 0


def test_regional_prompts_go_on_without_a_record(demo):
    run = demo.app.run
    area = {"width": 64, "height": 128, "x": 0, "y": 0, "strength": 1.0}
    (left,) = run("ConditioningSetArea", conditioning=text(demo, "red hair"), **area)
    (regional,) = run("ConditioningCombine", conditioning_1=demo.positive, conditioning_2=left)
    model, recording = demo.record("all", "conditional")
    plain, recorded = (demo.sample(one, positive=regional) for one in (demo.model, model))
    assert torch.equal(plain["samples"], recorded["samples"])
    with pytest.raises(
        ValueError,
        match=r"Nothing was recorded .* steps 0, 1, 2\. The conditioning has several parts",
    ):
        demo.read(recording, recorded)


def copied_conditionings(model):
    """A clone whose conditionings are evaluated as copies under ids of their own, as other nodes
    do.
    """
    from comfy.patcher_extension import WrappersMP

    def copied(executor, model, conds, *args):
        return executor(
            model, [[{**entry, "uuid": uuid.uuid4()} for entry in group] for group in conds], *args
        )

    clone = model.clone()
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, "copies", copied)
    return clone


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("guider", ["DualCFGGuider", "PerpNegGuider"])
def test_rows_are_the_guiders_positive_and_negative(demo, guider, copies):
    """DualCFGGuider passes its negative conditioning first; PerpNegGuider has two negative ones."""
    base = copied_conditionings(demo.model) if copies else demo.model
    first, second, negative = (
        text(demo, "red hair, smiling"),
        text(demo, "beard"),
        text(demo, "sunglasses, hoodie"),
    )
    if guider == "DualCFGGuider":
        given = {
            "cond1": first,
            "cond2": second,
            "negative": negative,
            "cfg_conds": 3.0,
            "cfg_cond2_negative": 2.0,
        }
        given["style"] = "regular"
    else:
        given = {
            "positive": first,
            "negative": negative,
            "empty_conditioning": second,
            "cfg": 3.0,
            "neg_scale": 1.0,
        }
    ids = "up-level1-repeat0-vit-block0-out"
    model, recording = demo.record("0", "both", ids, model=base)
    plain, recorded = guided(demo, base, guider, **given), guided(demo, model, guider, **given)
    assert torch.equal(plain["samples"], recorded["samples"])
    found = demo.read(recording, recorded)[0]
    assert [row.conditional for row in found.rows] == [True, False]
    alone_model, alone = demo.record("0", "both", ids)
    samples = guided(demo, alone_model, "CFGGuider", positive=first, negative=negative, cfg=3.0)
    expected = demo.read(alone, samples)[0].tensors[ids]
    assert (found.tensors[ids] - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", ["SD3", "Chroma", "WAN21_T2V", "PixArtAlpha"])
def test_texts_of_unequal_length_keep_their_lengths(app, name):
    model = tiny_transformers.model(name)
    given = {
        **PATTERN,
        "ids": "*block1-cross-map\nattn-mean",
        "recorded_steps": "all",
        "rows": "both",
    }
    recording_model, recording = app.run("GBX_ActivationRecorder", model=model, **given)
    settings = {
        "seed": 7,
        "steps": 2,
        "cfg": 2.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
        "positive": tiny_transformers.conditioning(9),
        "negative": tiny_transformers.conditioning(5),
        "latent_image": tiny_transformers.latent(model, 1, 26, 44),
    }
    plain, recorded = (
        app.run("KSampler", model=one, **settings)[0] for one in (model, recording_model)
    )
    assert torch.equal(plain["samples"], recorded["samples"])
    found = app.run(
        "GBX_ReadActivations", recording=recording, latent=recorded, step_index=0, average=True
    )[0]
    lengths = [row.text_tokens for row in found.rows]
    assert lengths[0] > lengths[1] > 0
    maps = found.tensors["attn-mean"]
    assert (
        maps.shape[1] == lengths[0]
        and not maps[1, lengths[1] :].any()
        and maps[1, : lengths[1]].any()
    )


def test_a_module_that_another_node_takes_out_is_reported(demo, monkeypatch):
    model, recording = demo.record("all", "conditional", "up-level1-repeat0-vit-block0-cross-q")
    block = demo.model.model.diffusion_model.output_blocks[3][1].transformer_blocks[0]
    monkeypatch.setattr(block, "forward", lambda x, *args, **kwargs: x)
    samples = demo.sample(model)
    with pytest.raises(ValueError, match="up-level1-repeat0-vit-block0-cross-q was not computed"):
        demo.read(recording, samples)


def downscaled(demo, model):
    """Core's Kohya Deep Shrink: the first steps have smaller activations."""
    given = {"block_number": 1, "downscale_factor": 2.0, "start_percent": 0.0, "end_percent": 0.35}
    given |= {
        "downscale_after_skip": True,
        "downscale_method": "bicubic",
        "upscale_method": "bicubic",
    }
    return demo.app.run("PatchModelAddDownscale", model=model, **given)[0]


@pytest.mark.parametrize("mean_only", [False, True])
def test_sizes_that_change_within_a_run_do_not_end_it(demo, mean_only):
    id_ = "down-level1-repeat0-res-out"
    model, recording = demo.app.run(
        "GBX_ActivationRecorder",
        **{
            **PATTERN,
            "ids": id_,
            "recorded_steps": "all",
            "rows": "both",
            "mean_only": mean_only,
            "model": demo.model,
        },
    )
    plain, samples = (demo.sample(downscaled(demo, one), steps=6) for one in (demo.model, model))
    assert torch.equal(plain["samples"], samples["samples"])
    given = {"recording": recording, "latent": samples, "step_index": 0}
    if mean_only:
        assert "other rows or sizes" in demo.app.run("GBX_ReadActivations", **given)[2]
    else:
        with pytest.raises(ValueError, match="changes the network's sizes within the run"):
            demo.app.run("GBX_ReadActivations", **given, average=True)


def test_the_recordings_of_a_long_list_are_all_there(demo):
    model, recording = demo.record("last", "conditional")
    results = [demo.sample(model, demo.latent(1), seed=seed, steps=2) for seed in range(7)]
    first = demo.read(recording, results[0])[0].tensors
    again = demo.sample(model, demo.latent(1), seed=0, steps=2)
    assert all(
        torch.equal(value, first[id_])
        for id_, value in demo.read(recording, again)[0].tensors.items()
    )
    assert all(demo.read(recording, one)[1] == 1 for one in results)


def test_beyond_its_bytes_a_recorder_says_what_it_gave_up(demo, monkeypatch):
    model, recording = demo.record("last", "conditional")
    results = [demo.sample(model, demo.latent(1), seed=0, steps=2)]
    monkeypatch.setattr(
        demo.app.module("nodes.activations.recorder"), "KEPT_BYTES", 2 * recording._runs[0].bytes
    )
    results += [demo.sample(model, demo.latent(1), seed=seed, steps=2) for seed in (1, 2)]
    assert all(demo.read(recording, one)[1] == 1 for one in results[1:])
    with pytest.raises(ValueError, match=r"were given up: .* Record fewer steps"):
        demo.read(recording, results[0])


def test_an_adaptive_sampler_s_own_steps_are_counted(demo):
    """Against the sampler's callback, of a run that makes another number of steps than its schedule
    has.
    """
    import comfy.sample

    began = []
    latent = demo.latent(1)["samples"]
    given = (
        torch.randn(latent.shape, generator=torch.Generator().manual_seed(0)),
        3,
        1.0,
        "dpm_adaptive",
        "normal",
    )
    for selected in ("all", "last"):
        model, recording = demo.record(selected, "conditional", "unet-in")
        began.clear()
        samples = comfy.sample.sample(
            model,
            *given,
            demo.positive,
            demo.negative,
            latent,
            seed=1,
            callback=lambda *step: began.append(step[0]),
        )
        run = recording.run_of(samples)
        steps = tuple(range(len(began)))
        assert len(steps) != 3 and run.steps == len(steps)
        assert run.recorded == (steps if selected == "all" else steps[-1:])
