"""Identity guidance inside a real ComfyUI: its formula, its neutral strengths, and stock
conditioning and guiders.
"""

import functools

import pytest
import reduced
import tapping
import torch
import weight_nodes
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def points(family):
    point = family.draw(family.directed[0])[0]
    return point, family.edit(point, "beard: 1")[0]


def guidance(app, family, points, identity=1.0, edit=1.0, model=None, both=True, **given):
    given |= {"identity_strength": identity, "edit_strength": edit}
    if both:
        given["edited_point"] = points[1]
    return app.run("GBX_W2WGuidance", model=model or family.model, point=points[0], **given)


def denoised(app, guider, sigma=2.0, channels=24):
    """One prediction of a guider at a noise level, from the same noise."""
    found = []
    noise = torch.randn(1, channels, 16, 16, generator=torch.Generator().manual_seed(3))

    class Once:
        def sample(self, guide, sigmas, extra, callback, noise, latent, mask, disable):
            found.append(guide(noise * sigma, torch.tensor([sigma]), **extra))
            return noise

    with torch.inference_mode():
        guider.sample(
            noise,
            torch.zeros_like(noise),
            Once(),
            torch.tensor([sigma, 0.0]),
            disable_pbar=True,
            seed=1,
        )
    return found[0]


def cfg_guider(app, family, model, cfg, positive=None, negative=None):
    return app.run(
        "CFGGuider",
        model=model,
        positive=positive or family.positive,
        negative=negative or family.negative,
        cfg=cfg,
    )[0]


def test_strengths_of_zero_are_the_model_itself(app, family, points):
    assert guidance(app, family, points, 0.0, 0.0)[0] is family.model
    assert guidance(app, family, points, 0.0, 5.0, both=False)[0] is family.model


@pytest.mark.parametrize("cfg", [1.0, 3.0])
@pytest.mark.parametrize(("identity", "edit"), [(1.0, 1.0), (0.0, 1.0), (1.3, 0.5)])
def test_the_prediction_is_the_formula(app, family, points, cfg, identity, edit):
    """(1 - w) e_base(negative) + w (e_base + s_i (e_point - e_base) + s_e (e_edited - e_point)), to
    1e-4.
    """
    models = {
        "base": family.model,
        "point": family.apply(points[0]),
        "edited": family.apply(points[1]),
    }
    alone = {
        name: denoised(app, cfg_guider(app, family, model, 1.0)) for name, model in models.items()
    }
    against = denoised(app, cfg_guider(app, family, family.model, 1.0, positive=family.negative))
    side = (
        alone["base"]
        + identity * (alone["point"] - alone["base"])
        + edit * (alone["edited"] - alone["point"])
    )
    wanted = against + cfg * (side - against)
    model = guidance(app, family, points, identity, edit)[0]
    found = denoised(app, cfg_guider(app, family, model, cfg))
    torch.testing.assert_close(found, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)
    assert (
        float((found - denoised(app, cfg_guider(app, family, family.model, cfg))).abs().max())
        > 1e-3
    )


def test_the_guider_is_the_guidance_with_a_cfg_guider(app, family, points):
    model, report = guidance(app, family, points, 1.2, 0.7)
    guider, same = app.run(
        "GBX_W2WGuider",
        model=family.model,
        positive=family.positive,
        negative=family.negative,
        cfg=2.5,
        point=points[0],
        edited_point=points[1],
        identity_strength=1.2,
        edit_strength=0.7,
    )
    assert same == report and "4 model evaluations" in report
    assert torch.equal(denoised(app, guider), denoised(app, cfg_guider(app, family, model, 2.5)))


@pytest.mark.parametrize(
    ("identity", "edit", "cfg", "rows"),
    [(1.0, 1.0, 3.0, 2), (1.0, 0.5, 3.0, 3), (1.5, 0.5, 3.0, 4), (1.0, 1.0, 1.0, 1)],
)
def test_the_reported_evaluations_are_those_made(
    app, family, points, monkeypatch, identity, edit, cfg, rows
):
    model, report = guidance(app, family, points, identity, edit)
    counted, forward = [], family.model.model.diffusion_model.forward

    def counting(x, *rest, **more):
        counted.append(len(x))
        return forward(x, *rest, **more)

    monkeypatch.setattr(family.model.model.diffusion_model, "forward", counting)
    denoised(app, cfg_guider(app, family, model, cfg))
    assert sum(counted) == rows and f"{rows if cfg > 1 else rows + 1} model evaluations" in report


@pytest.mark.parametrize(
    ("identity", "edit", "rows"), [(1.0, 1.0, 2), (1.3, 0.5, 6), (0.0, 0.0, 2)]
)
def test_after_the_end_both_sides_have_the_point(
    app, family, points, monkeypatch, identity, edit, rows
):
    """Before it the guidance is what it is without an end; after it CFG between sides that have
    the same weighted sum, to 1e-4.
    """
    whole, _ = guidance(app, family, points, identity, edit)
    limited, report = guidance(app, family, points, identity, edit, end_percent=0.6)
    assert f"both sides have it: {rows}." in report
    end = float(family.model.get_model_object("model_sampling").percent_to_sigma(0.6))
    for sigma in (1.05 * end, end):
        early = denoised(app, cfg_guider(app, family, limited, 3.0), sigma)
        assert torch.equal(early, denoised(app, cfg_guider(app, family, whole, 3.0), sigma))
    patched = [family.model, *(family.apply(point) for point in points)]
    terms = [denoised(app, cfg_guider(app, family, model, 3.0), 0.95 * end) for model in patched]
    weights = (1 - identity, identity - edit, edit)
    wanted = sum(weight * term for weight, term in zip(weights, terms, strict=True))
    late = denoised(app, cfg_guider(app, family, limited, 3.0), 0.95 * end)
    torch.testing.assert_close(late, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)
    counted, forward = [], family.model.model.diffusion_model.forward

    def counting(x, *rest, **more):
        counted.append(len(x))
        return forward(x, *rest, **more)

    monkeypatch.setattr(family.model.model.diffusion_model, "forward", counting)
    denoised(app, cfg_guider(app, family, limited, 3.0), 0.95 * end)
    assert sum(counted) == rows


def test_after_the_end_guiders_with_three_prompts_have_the_point_on_each(app, family, points):
    model, end = guidance(app, family, points, end_percent=0.6)[0], 0.1
    given = {"cond1": family.positive, "cond2": family.negative, "negative": family.negative}
    strengths = {"cfg_conds": 2.0, "cfg_cond2_negative": 1.5, "style": "regular"}
    sides = {
        "positive": family.positive,
        "negative": family.negative,
        "empty_conditioning": family.negative,
    }
    for guider, inputs in (
        ("DualCFGGuider", given | strengths),
        ("PerpNegGuider", {**sides, "cfg": 3.0, "neg_scale": 1.0}),
    ):
        found, wanted = (
            denoised(app, app.run(guider, model=one, **inputs)[0], end)
            for one in (model, family.apply(points[1]))
        )
        torch.testing.assert_close(found, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)


@pytest.mark.parametrize("regional_alone", [False, True])
def test_areas_and_timestep_ranges_keep_their_meaning(app, family, points, regional_alone):
    """A prompt on the left half, and one in the first part of the run: as without guidance, with
    other weights.
    """
    (both,) = app.run(
        "ConditioningSetArea",
        conditioning=family.positive,
        width=64,
        height=128,
        x=0,
        y=0,
        strength=1.0,
    )
    if not regional_alone:
        (early,) = app.run(
            "ConditioningSetTimestepRange", conditioning=family.negative, start=0.0, end=0.4
        )
        (both,) = app.run("ConditioningCombine", conditioning_1=both, conditioning_2=early)
    patched, model = family.apply(points[1]), guidance(app, family, points)[0]
    for sigma in (5.0, 0.5):
        positive = denoised(app, cfg_guider(app, family, patched, 1.0, positive=both), sigma)
        negative = denoised(app, cfg_guider(app, family, family.model, 0.0, positive=both), sigma)
        found = denoised(app, cfg_guider(app, family, model, 3.0, positive=both), sigma)
        wanted = negative + 3.0 * (positive - negative)
        torch.testing.assert_close(found, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)


def test_a_controlnet_acts_in_every_evaluation(app, family, points):
    """One whose outputs are not zero: as without guidance, with other weights."""
    control = functools.partial(tapping.controlled, app, family.model, value=0.02)
    both, negative = control(family.positive), control(family.negative)
    model, patched = guidance(app, family, points)[0], family.apply(points[1])
    positive = denoised(app, cfg_guider(app, family, patched, 1.0, positive=both))
    against = denoised(app, cfg_guider(app, family, family.model, 1.0, positive=negative))
    found = denoised(app, cfg_guider(app, family, model, 3.0, positive=both, negative=negative))
    wanted = against + 3.0 * (positive - against)
    torch.testing.assert_close(found, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)
    assert not torch.allclose(found, denoised(app, cfg_guider(app, family, model, 3.0)), atol=1e-3)


@pytest.mark.parametrize(
    ("architecture", "cfg", "strength"), [("sdxl", 3.0, 1.0), ("flux", 1.0, 1.6)]
)
def test_sdxl_and_flux(app, tmp_path, architecture, cfg, strength):
    """Flux at cfg 1 has no negative side: a strength above 1 extrapolates from the base model."""
    model, clip, _ = reduced.checkpoint(architecture)
    space = _own_space(app, model, tmp_path)
    drawn = {
        "seed": 0,
        "count": 1,
        "components": 9,
        "spread": 1.0,
        "source": "random",
        "member_name": "",
    }
    (point,) = app.run("GBX_W2WSample", space=space, **drawn)[0]
    applied = app.run(
        "GBX_W2WApply", model=model, point=point, strength=1.0, start_percent=0.0, end_percent=1.0
    )[0]
    guided = app.run(
        "GBX_W2WGuidance", model=model, point=point, identity_strength=strength, edit_strength=1.0
    )[0]
    positive, negative = (
        app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("a face", "blurred")
    )

    def sample(patched, scale: float, texts=(positive, negative)) -> torch.Tensor:
        guider = app.run(
            "CFGGuider", model=patched, positive=texts[0], negative=texts[1], cfg=scale
        )[0]
        return denoised(app, guider, 0.7, model.model.latent_format.latent_channels)

    base, other = sample(model, 1.0), sample(applied, 1.0)
    side = base + strength * (other - base)
    against = sample(model, 1.0, (negative, negative))
    wanted = against + cfg * (side - against)
    torch.testing.assert_close(
        sample(guided, cfg), wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0
    )
    assert float((other - base).abs().max()) > 1e-3


def _own_space(app, model, folder):
    """The space of four LoRAs of random numbers on two of a MODEL's layers."""
    keys = app.module("nodes.common.lora_keys")
    weights = {name: value for name, value in model.model.state_dict().items() if value.ndim == 2}
    chosen = [
        name for name in weights if name.endswith(("attn1.to_q.weight", "img_attn.qkv.weight"))
    ][:2]
    (folder / "loras").mkdir()
    for seed in range(4):
        generator, tensors = torch.Generator().manual_seed(seed), {}
        for name in chosen:
            down, up, alpha = keys.keys(keys.canonical(name.removesuffix(".weight")))
            rows, columns = weights[name].shape
            tensors |= {
                down: torch.randn(2, columns, generator=generator),
                alpha: torch.tensor(2.0),
            }
            tensors[up] = 0.05 * torch.randn(rows, 2, generator=generator)
        save_file(tensors, folder / "loras" / f"{seed}.safetensors")
    building, sources = (
        app.module("nodes.weights.space_builder"),
        app.module("nodes.weights.member_sources"),
    )
    settings = building.BuildSettings(form="weight_updates")
    return building.build(
        sources.file_sources(folder / "loras"), settings, folder / "space.safetensors"
    )


def test_a_guider_with_three_conditionings_keeps_its_negative_side(app, family, points):
    """DualCFGGuider evaluates its negative first: positive is what the guider calls so, not the
    first.
    """
    model, patched = guidance(app, family, points)[0], family.apply(points[1])
    given = {"cond1": family.positive, "cond2": family.positive, "negative": family.negative}
    strengths = {"cfg_conds": 2.0, "cfg_cond2_negative": 1.5, "style": "regular"}
    guider = app.run("DualCFGGuider", model=model, **given, **strengths)[0]
    positive = denoised(app, cfg_guider(app, family, patched, 1.0))
    negative = denoised(app, cfg_guider(app, family, family.model, 1.0, positive=family.negative))
    wanted = negative + 1.5 * (
        positive - negative
    )  # both prompts are one: the first strength falls out
    torch.testing.assert_close(
        denoised(app, guider), wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0
    )


def test_a_stopped_run_leaves_the_model_as_it_was(app, family, points, monkeypatch):
    plain = denoised(app, cfg_guider(app, family, family.model, 3.0))
    model = guidance(app, family, points)[0]
    before = denoised(app, cfg_guider(app, family, model, 3.0))
    with monkeypatch.context() as patch:

        def fail(*_, **__):
            raise RuntimeError("stopped")

        patch.setattr(family.model.model.diffusion_model, "forward", fail)
        with pytest.raises(RuntimeError, match="stopped"):
            denoised(app, cfg_guider(app, family, model, 3.0))
    assert torch.equal(denoised(app, cfg_guider(app, family, family.model, 3.0)), plain)
    assert torch.equal(denoised(app, cfg_guider(app, family, model, 3.0)), before)


def test_guidance_stacks_on_an_applied_point(app, family, points):
    """The MODEL may have patches of its own: they are part of the base."""
    other = family.apply(family.draw(family.space, seed=5)[0])
    model = guidance(app, family, points, model=other)[0]
    both = family.apply(points[1], other)
    positive = denoised(app, cfg_guider(app, family, both, 1.0))
    negative = denoised(app, cfg_guider(app, family, other, 1.0, positive=family.negative))
    wanted = negative + 2.0 * (positive - negative)
    found = denoised(app, cfg_guider(app, family, model, 2.0))
    torch.testing.assert_close(found, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)


def test_a_model_of_another_architecture_is_refused(app, family, points):
    with pytest.raises(ValueError, match="made for another base model"):
        guidance(app, family, points, model=reduced.checkpoint("flux")[0])
