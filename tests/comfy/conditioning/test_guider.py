"""Metadata Guider: equal to stock guidance where the formula says so, and seen by CFG patches."""

import conditioned
import pytest
import torch
from conditioned import guider, prompt, sample, watched

SIGMAS = [14.6146, 1.6156, 0.4, 0.0]
REQUESTED = {"width": 512, "height": 256, "crop_w": 9}
CFG = 3.0


@pytest.fixture(scope="module")
def model(app):
    return conditioned.model("sdxl")


@pytest.fixture(scope="module")
def made(app, model):
    """Metadata Guider with the prompts of this file; keywords replace the settings."""

    def run(**changes):
        given = {
            "model": model,
            "positive": prompt("sdxl", **REQUESTED),
            "negative": prompt("sdxl", 1, width=700, height=9),
            "cfg": CFG,
            "metadata_strength": 1.0,
            "fields": "sizes_and_crop",
            "reference_width": 0,
            "reference_height": 0,
        }
        return app.run("GBX_MetadataGuider", **{**given, **changes})[0]

    return run


def test_strength_one_is_cfg(model, made):
    stock = sample(guider(model, prompt("sdxl", **REQUESTED), prompt("sdxl", 1), CFG), SIGMAS)
    assert torch.equal(sample(made(), SIGMAS), stock)


def test_strength_zero_is_cfg_with_the_reference(model, made):
    stock = sample(guider(model, prompt("sdxl"), prompt("sdxl", 1), CFG), SIGMAS)
    assert torch.equal(sample(made(metadata_strength=0.0), SIGMAS), stock)


def test_both_at_one_is_the_conditional_prediction(model, made):
    with watched(model) as seen:
        ours = sample(made(cfg=1.0), SIGMAS)
    assert all(call["rows"] == [0] for call in seen)
    assert torch.equal(
        ours, sample(guider(model, prompt("sdxl", **REQUESTED), prompt("sdxl", 1), 1.0), SIGMAS)
    )


@pytest.mark.parametrize(("cfg", "strength"), [(3.0, 0.4), (3.0, 2.5), (1.0, 0.5), (0.5, 0.5)])
def test_between_it_is_dual_cfg(app, model, made, cfg, strength):
    dual = app.run(
        "DualCFGGuider",
        model=model,
        cond1=prompt("sdxl", **REQUESTED),
        cond2=prompt("sdxl"),
        negative=prompt("sdxl", 1),
        cfg_conds=cfg * strength,
        cfg_cond2_negative=cfg,
        style="regular",
    )[0]
    ours, theirs = sample(made(cfg=cfg, metadata_strength=strength), SIGMAS), sample(dual, SIGMAS)
    assert torch.allclose(
        ours, theirs, atol=1e-4 * float(theirs.abs().max())
    )  # another order of the same sum


def test_one_evaluation_is_affine_in_the_strength(made):
    one_step = [1.6156, 0.0]
    low, middle, high = (
        sample(made(metadata_strength=value), one_step) for value in (0.0, 0.5, 1.0)
    )
    assert torch.allclose(middle, (low + high) / 2, atol=1e-4 * float(high.abs().max()))
    further = sample(made(metadata_strength=2.0), one_step)
    assert torch.allclose(further, low + 2 * (high - low), atol=1e-4 * float(high.abs().max()))


@pytest.mark.parametrize(
    ("choice", "rows"),
    [
        ({"metadata_strength": 1.0}, 2),
        ({"metadata_strength": 0.0}, 2),
        ({"metadata_strength": 0.5}, 3),
        ({"metadata_strength": 0.5, "cfg": 1.0}, 2),
        ({"metadata_strength": 0.5, "cfg": 0.0}, 2),
    ],
)
def test_no_more_evaluations_than_the_strengths_ask_for(model, made, choice, rows):
    with watched(model) as seen:
        sample(made(**choice), [1.6156, 0.0])
    assert [len(call["rows"]) for call in seen] == [rows]


def test_only_the_chosen_fields_are_the_reference_s(model, made):
    with watched(model) as seen:
        sample(
            made(
                fields="original_size",
                metadata_strength=0.5,
                reference_width=300,
                reference_height=200,
            ),
            SIGMAS,
        )
    rows = dict(zip(seen[0]["rows"], seen[0]["y"], strict=True))

    def expected_row(number, **metadata):
        with watched(model) as stock:
            sample(guider(model, prompt("sdxl", number, **metadata), [], 1.0), SIGMAS)
        return stock[0]["y"][0]

    assert torch.equal(rows[2], expected_row(0, **REQUESTED))
    assert torch.equal(rows[1], expected_row(0, **{**REQUESTED, "width": 300, "height": 200}))
    assert torch.equal(rows[0], expected_row(1, width=300, height=200))


def test_with_a_gate_on_the_model(app, model, made):
    given = {
        "curve": "cosine",
        "exponent": 64.0,
        "fields": "sizes_and_crop",
        "reference_width": 0,
        "reference_height": 0,
        "mode": "value",
        "apply_to": "both",
    }
    gated = app.run("GBX_MetadataSchedule", model=model, **given)[0]
    shut = sample(made(model=gated, metadata_strength=0.5), [14.6146, 0.0])
    stock = sample(guider(model, prompt("sdxl"), prompt("sdxl", 1), CFG), [14.6146, 0.0])
    assert torch.allclose(shut, stock, atol=1e-4 * float(stock.abs().max()))


def test_strength_is_continuous_under_a_cfg_patch(app, model, made):
    """RescaleCFG sees the whole guidance: near strength 1 it gives what strength 1 gives."""
    patched = app.run("RescaleCFG", model=model, multiplier=0.7)[0]
    step = [1.6156, 0.0]
    low, near, high = (
        sample(made(model=patched, metadata_strength=value), step) for value in (0.0, 0.999, 1.0)
    )
    assert float((near - high).abs().max()) < 0.02 * float((high - low).abs().max())


def test_pre_cfg_functions_see_the_blended_condition(model, made):
    seen = []
    clone = model.clone()
    clone.model_options["sampler_pre_cfg_function"] = [
        lambda args: seen.append(args["conds_out"]) or args["conds_out"]
    ]
    sample(made(model=clone, metadata_strength=0.5), [1.6156, 0.0])
    assert [len(predictions) for predictions in seen] == [2]


def test_a_negative_prompt_without_metadata_stays_stock(model, made):
    settings = {"negative": prompt("sdxl", 1), "reference_width": 300, "reference_height": 200}
    with watched(model) as seen:
        sample(made(metadata_strength=0.5, **settings), SIGMAS)
    with watched(model) as stock:
        sample(guider(model, prompt("sdxl", 1), [], 1.0), SIGMAS)
    rows = dict(zip(seen[0]["rows"], seen[0]["y"], strict=True))
    assert torch.equal(rows[0], stock[0]["y"][0])


def test_it_takes_part_in_post_cfg_functions(model, made):
    seen = []
    clone = model.clone()
    clone.set_model_sampler_post_cfg_function(
        lambda args: seen.append(args["cond_scale"]) or args["denoised"]
    )
    sample(made(model=clone, metadata_strength=0.5), [1.6156, 0.0])
    sample(made(model=clone), [1.6156, 0.0])
    assert seen == [CFG, CFG]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"model": "sd15"}, "takes no size metadata"), ({"reference_width": 5}, "set both sides")],
)
def test_inputs_that_do_not_fit_are_refused(made, changes, sentence):
    if "model" in changes:
        changes = {"model": conditioned.model(changes["model"])}
    with pytest.raises(ValueError, match=sentence):
        made(**changes)
