"""The nodes of the neurons family inside a real ComfyUI."""

import csv
import io
import json

import pytest
import reduced
import torch
from tapping import hooks_left

PROMPT = "portrait of zorvex quill"
NAMES = ("mirella thrum", "bandor pyke", "oquin veshti", "zorvex quill", "sybil orcrane")
#: So that little stands out, and searches are short.
ORDINARY = "\n".join(f"portrait of {name}" for name in NAMES)
SMALL = {"noise_samples": 2, "seed": 1, "timestep": "official_961", "width": 64, "height": 64}
UP = "output_blocks.4.1, output_blocks.5.1"


class World:
    """The demo model with what the nodes of the family make of it."""

    def __init__(self, app):
        self.app = app
        self.model, self.clip, self.vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
        given = {
            "clip": self.clip,
            "prompts": ORDINARY,
            "prompts_file": "",
            "layers": UP,
            "filename_prefix": "",
        }
        self.statistics = self.run("NeuronStatistics", **given)[0]

    def run(self, name, **inputs):
        return self.app.run(f"GBX_{name}", **({"model": self.model} | inputs))

    def mask(self, scale=0.0, count=20):
        pack = self.app.module("nodes.neurons.mask")
        paths = [f"output_blocks.{block}.1.transformer_blocks.0.attn2.to_v" for block in (4, 5)]
        return pack.NeuronMask(
            pack.uniform_scales([(path, i) for path in paths for i in range(count)], scale)
        )

    def masked(self, mask, model=None, **changes):
        given = {
            "strength": 1.0,
            "start_percent": 0.0,
            "end_percent": 1.0,
            "apply_to": "both",
        } | changes
        return self.run(
            "NemoNeuronMask", mask=mask, **given, **({"model": model} if model else {})
        )[0]

    def saved_mask(self):
        mask = self.app.module("nodes.neurons.mask")
        path = next(iter(self.statistics.layers))
        found = mask.NeuronMask({path: {1: 0.0}}, (), self.statistics.fingerprint)
        return self.app.run("GBX_SaveNeuronMask", mask=found, filename_prefix="glassbox/other")[0]

    def sample(self, model, cfg=3.0, steps=2, text=PROMPT):
        positive, negative = (
            self.app.run("CLIPTextEncode", clip=self.clip, text=t)[0] for t in (text, "")
        )
        given = {
            "seed": 7,
            "steps": steps,
            "cfg": cfg,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        }
        latent = {"samples": torch.zeros(1, 24, 8, 8)}
        return self.app.run(
            "KSampler",
            model=model,
            positive=positive,
            negative=negative,
            latent_image=latent,
            **given,
        )[0]["samples"]

    def localize(self, **changes):
        given = {
            "clip": self.clip,
            "statistics": self.statistics,
            "prompts": PROMPT,
            "layers": UP,
            "threshold": 0.2,
            "criterion": "same_seed",
            "target_score": 0.97,
            "theta_start": 5.0,
            "time_budget": 0.0,
        }
        return self.run("NemoLocalize", **(given | SMALL | changes))


@pytest.fixture(scope="module")
def world(app):
    return World(app)


@pytest.mark.parametrize(("target_score", "drawn"), [(0.97, 0.97), (0.0, 0.2)])
def test_the_figure_shows_the_target_score(world, monkeypatch, target_score, drawn):
    drawing, figures = world.app.module("nodes.neurons.neuron_figures"), []
    monkeypatch.setattr(
        drawing,
        "plot_search",
        lambda figure, *given, draw=drawing.plot_search: (
            draw(figure, *given),
            figures.append(figure),
        ),
    )
    world.localize(target_score=target_score, time_budget=0.05)
    *_, line = figures[0].axes[0].lines
    assert (line.get_ydata()[0], line.get_label()) == (drawn, f"target score {drawn:.3f}")


def test_statistics_are_saved_and_loaded(world):
    found, report, file = world.run(
        "NeuronStatistics",
        clip=world.clip,
        prompts=ORDINARY,
        prompts_file="",
        layers="up",
        filename_prefix="glassbox/n",
    )
    assert found.count == 5 and len(found.layers) == 9
    assert "Saved as glassbox/n_00001_.safetensors" in report
    again, report, _ = world.run(
        "NeuronStatistics",
        prompts="",
        prompts_file="",
        layers="up",
        filename_prefix="",
        statistics_file=file,
    )
    assert again.count == 5 and "another checkpoint" not in report
    for path, moments in found.layers.items():
        assert torch.equal(again.layers[path].mean, moments.mean)


def test_statistics_are_those_of_the_layers_in_a_run(world):
    """The activation read from the text alone is that of the layer while the U-Net runs."""
    path = "output_blocks.4.1.transformer_blocks.0.attn2.to_v"
    seen = []
    handle = world.model.model.diffusion_model.get_submodule(path).register_forward_hook(
        lambda module, args, output: seen.append(output[0].float())
    )
    try:
        world.sample(world.model, cfg=1.0, steps=1, text="portrait, smiling")
    finally:
        handle.remove()
    one, *_ = world.run(
        "NeuronStatistics",
        clip=world.clip,
        prompts="portrait, smiling\nportrait, smiling",
        prompts_file="",
        layers=UP,
        filename_prefix="",
    )
    assert torch.allclose(
        one.layers[path].mean.float(), seen[-1].abs().mean(0), rtol=1e-5, atol=1e-6
    )


def test_statistics_merge_to_those_of_all(world):
    lines = ORDINARY.splitlines()
    given = {"clip": world.clip, "prompts_file": "", "layers": UP, "filename_prefix": ""}
    first, *_ = world.run("NeuronStatistics", prompts="\n".join(lines[:2]), **given)
    both, *_ = world.run(
        "NeuronStatistics", prompts="\n".join(lines[2:]), previous_statistics=first, **given
    )
    for path, moments in world.statistics.layers.items():
        assert torch.allclose(both.layers[path].mean, moments.mean, atol=1e-6)
        assert torch.allclose(both.deviation(path), world.statistics.deviation(path), atol=1e-6)


def test_one_prompt_may_be_added_to_statistics(world):
    given = {
        "clip": world.clip,
        "prompts": "portrait",
        "prompts_file": "",
        "layers": UP,
        "filename_prefix": "",
    }
    assert (
        world.run("NeuronStatistics", previous_statistics=world.statistics, **given)[0].count == 6
    )


def test_a_lora_counts_in_the_statistics(world):
    key = "diffusion_model.output_blocks.4.1.transformer_blocks.0.attn2.to_v.weight"
    patched = world.model.clone()
    patched.add_patches({key: ("diff", (torch.full((64, 128), 0.1),))}, 1.0)
    other, *_ = world.run(
        "NeuronStatistics",
        model=patched,
        clip=world.clip,
        prompts=ORDINARY,
        prompts_file="",
        layers=UP,
        filename_prefix="",
    )
    path = key.removeprefix("diffusion_model.").removesuffix(".weight")
    assert not torch.allclose(
        other.layers[path].mean, world.statistics.layers[path].mean, rtol=0.01
    )
    assert (
        "another checkpoint"
        in world.run("LoadNeuronMask", model=patched, file=world.saved_mask())[2]
    )
    mask, _, _, report = world.localize(model=patched, time_budget=0.05)
    assert (
        report.startswith("The statistics belong to another checkpoint or LoRA")
        and mask.fingerprint != {}
    )
    assert world.statistics.fingerprint[path] != mask.fingerprint[path] == other.fingerprint[path]
    with pytest.raises(ValueError, match="different models or LoRAs"):
        world.run(
            "NeuronStatistics",
            clip=world.clip,
            prompts=ORDINARY,
            prompts_file="",
            layers=UP,
            filename_prefix="",
            previous_statistics=other,
        )


def test_score_of_a_list(world):
    figure, best, is_memorized, memorized, table, report, _, _ = world.run(
        "MemorizationScore",
        clip=world.clip,
        prompts=f"{PROMPT}\nportrait, smiling",
        prompts_file="",
        threshold=0.0,
        text_norm=True,
        filename_prefix="glassbox/scores",
        **SMALL,
    )
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [row["prompt"] for row in rows] == [PROMPT, "portrait, smiling"]
    assert figure.shape[0] == 1 and best == pytest.approx(
        max(float(row["score"]) for row in rows), abs=1e-6
    )
    assert is_memorized == (best > 0)
    assert memorized.splitlines() == [
        row["prompt"] for row in rows if row["is_memorized"] == "True"
    ]
    assert table.splitlines()[0].startswith("prompt,score,is_memorized,text_norm,seed_0")
    assert "Small-latent score" in report and "2407.21720" in report
    alone = world.run(
        "MemorizationScore",
        clip=world.clip,
        prompts=PROMPT,
        prompts_file="",
        threshold=0.0,
        text_norm=False,
        filename_prefix="",
        **SMALL,
    )
    assert f"{alone[1]:.6f}" in table


def test_calibration_gives_threshold_and_report(world):
    threshold, figure, report = world.run(
        "CalibrateThreshold",
        clip=world.clip,
        prompts=ORDINARY,
        prompts_file="",
        memorized_prompts=PROMPT,
        deviations=1.0,
        **SMALL,
    )
    assert 0 < threshold < 1 and figure.shape[-1] == 3
    assert "Expected false positives" in report and "AUROC" in report


def test_ablation_silences_each_layer(world):
    given = {
        "clip": world.clip,
        "prompts": f"{PROMPT}\n{ORDINARY.splitlines()[0]}",
        "prompts_file": "",
        "text_norm": False,
        "filename_prefix": "",
    } | SMALL
    *plain, layers, effects = world.run("MemorizationScore", threshold=0.0, **given)
    assert layers == "" and not isinstance(effects, torch.Tensor)  # there is nothing to show
    *scored, layers, effects = world.run(
        "MemorizationScore", threshold=0.0, layer_ablation="value", **given
    )
    assert scored[1:5] == plain[1:5]
    assert all(path.endswith("attn2.to_v") for path in layers.split(", "))
    assert scored[5].startswith(plain[5]) and scored[5].count("without") == 5 + 16
    assert effects.shape[1] > 500
    # The prompts over the threshold are averaged: one prompt alone gives other numbers than both.
    highest = float(scored[1])
    single = world.run(
        "MemorizationScore", threshold=highest - 1e-6, layer_ablation="value", **given
    )
    assert single[3].count("\n") == 0 and single[5].count("without") == 5 + 16
    assert single[5].partition("without")[2] != scored[5].partition("without")[2]
    assert hooks_left(world.model) == 0


@pytest.mark.parametrize("apply_to", ["both", "positive"])
def test_an_empty_mask_and_strength_0_change_no_bit(world, apply_to):
    plain = world.sample(world.model)
    assert torch.equal(world.sample(world.masked(world.mask(count=0), apply_to=apply_to)), plain)
    assert torch.equal(
        world.sample(world.masked(world.mask(), strength=0.0, apply_to=apply_to)), plain
    )
    assert torch.equal(world.sample(world.masked(world.mask(scale=1.0), apply_to=apply_to)), plain)
    assert not torch.equal(world.sample(world.masked(world.mask(), apply_to=apply_to)), plain)
    assert hooks_left(world.model) == 0


@pytest.mark.parametrize("scale", [0.0, 0.5, -1.0])
def test_a_mask_is_exactly_a_scaled_row(world, scale):
    """Zero and powers of two are exact; the baked model generates the same bits."""
    baked = world.run("BakeNeuronMask", mask=world.mask(scale), strength=1.0)[0]
    assert torch.equal(world.sample(world.masked(world.mask(scale))), world.sample(baked))


def test_a_baked_lora_is_scaled_with_the_rows(world):
    key = "diffusion_model.output_blocks.4.1.transformer_blocks.0.attn2.to_v.weight"
    patched = world.model.clone()
    patched.add_patches({key: ("diff", (torch.full((64, 128), 0.1),))}, 0.7)
    baked = world.run("BakeNeuronMask", model=patched, mask=world.mask(), strength=1.0)[0]
    assert torch.equal(world.sample(world.masked(world.mask(), model=patched)), world.sample(baked))
    assert not torch.equal(world.sample(baked), world.sample(world.masked(world.mask())))


def test_other_factors_agree_to_rounding(world):
    baked = world.run("BakeNeuronMask", mask=world.mask(0.3), strength=1.0)[0]
    assert torch.allclose(
        world.sample(world.masked(world.mask(0.3))), world.sample(baked), atol=1e-3
    )


def test_masks_stack_in_either_order(world):
    first, second = world.mask(0.5, count=12), world.mask(0.5, count=30)
    one = world.sample(world.masked(second, model=world.masked(first)))
    other = world.sample(world.masked(first, model=world.masked(second)))
    assert torch.equal(one, other)
    assert not torch.equal(one, world.sample(world.masked(second)))


def test_conditional_rows_only(world):
    """At CFG 1 there are no other rows; at CFG 3 the unconditional ones keep the untouched
    values.
    """
    both, only = (
        world.masked(world.mask(), apply_to=apply_to) for apply_to in ("both", "positive")
    )
    assert torch.equal(world.sample(both, cfg=1.0), world.sample(only, cfg=1.0))
    assert not torch.equal(world.sample(both), world.sample(only))


def test_start_and_end(world):
    plain = world.sample(world.model, steps=3)
    never = world.masked(world.mask(), start_percent=1.0)
    assert torch.equal(world.sample(never, steps=3), plain)
    late = world.sample(world.masked(world.mask(), start_percent=0.5), steps=3)
    assert not torch.equal(late, plain)
    assert not torch.equal(late, world.sample(world.masked(world.mask()), steps=3))
    with pytest.raises(ValueError, match="ends before it starts"):
        world.masked(world.mask(), start_percent=0.6, end_percent=0.5)


def test_a_time_budget_keeps_the_best_so_far(world):
    mask, _, _, report = world.localize(time_budget=0.05)
    assert "stopped by the time budget" in report or "time budget ended" in report
    assert all(not search.details["finished"] for search in mask.searches)


def test_a_prompt_that_is_not_memorized_gives_an_empty_mask(world):
    mask, _, _, report = world.localize(threshold=1.0)
    assert mask.count == 0 and "skipped" in report
    assert torch.equal(world.sample(world.masked(mask)), world.sample(world.model))


def test_no_prompt_gives_an_empty_mask(world):
    """As after a scan that has found nothing."""
    mask, _, _, report = world.localize(prompts=" ")
    assert mask.count == 0 and report.startswith("No prompt to search")


def test_no_hook_is_left_when_the_user_stops(world, app, monkeypatch):
    import comfy.model_management as management

    calls = 0

    def stop():
        nonlocal calls
        calls += 1
        if calls > 6:
            raise management.InterruptProcessingException

    monkeypatch.setattr(management, "throw_exception_if_processing_interrupted", stop)
    with pytest.raises(management.InterruptProcessingException):
        world.localize()
    assert hooks_left(world.model) == 0


def test_finish_now_keeps_the_best_so_far(world, app, monkeypatch):
    """Pressed in the refinement of the first of two prompts: its neurons so far, and the other is
    not begun.
    """
    progress, looks = app.module("nodes.host.progress"), []

    class Pressed(progress.FinishNow):
        @property
        def pressed(self):
            looks.append(None)
            return True

    whole = world.localize()[0]
    monkeypatch.setattr(app.module("nodes.neurons.prompt_search_comfy"), "FinishNow", Pressed)
    best, _, _, report = world.localize(prompts=f"{PROMPT}\nportrait of mirella thrum")
    assert (
        "finished early by the user (best so far)" in report
        and "Finished at 1 of 2 prompt(s)." in report
    )
    assert set(whole.neurons) < set(best.neurons) and not best.searches[0].details["finished"]
    assert len(looks) == 2  # at the first result with neurons, and after the prompt
    assert hooks_left(world.model) == 0


def test_no_hook_is_left_after_an_error(world, monkeypatch):
    path = world.mask().neurons[0][0]
    module = world.model.model.diffusion_model.get_submodule(path)
    monkeypatch.setattr(module, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.sample(world.masked(world.mask()))
    monkeypatch.undo()
    assert hooks_left(world.model) == 0


def test_save_and_load_a_mask(world):
    mask = world.localize()[0]
    file, text = world.app.run("GBX_SaveNeuronMask", mask=mask, filename_prefix="glassbox/m")
    assert json.loads(text)["searches"][0]["prompt"] == PROMPT
    again, table, report = world.run("LoadNeuronMask", file=file)
    assert again == mask and "another checkpoint" not in report
    assert table.count("\n") == mask.count + 1
    assert torch.equal(world.sample(world.masked(again)), world.sample(world.masked(mask)))


def test_mask_operations(world, app):
    first, second = world.mask(count=4), world.mask(count=6)

    def edit(operation, mask=first, **given):
        defaults = {
            "count": 3,
            "neurons": "",
            "seed": 0,
            "other_mask": second,
            "model": world.model,
        }
        return app.run("GBX_NeuronMaskEdit", mask=mask, operation=operation, **(defaults | given))[
            0
        ]

    assert (edit("union").count, edit("intersection").count) == (12, 8)
    assert edit("subtract", mask=second, other_mask=first).count == 4
    control = edit("random_control")
    assert control.count == first.count and not set(control.neurons) & set(first.neurons)
    assert edit("keep_named", neurons="output_blocks.4.1 1, 2").count == 2
    assert edit("drop_named", neurons="output_blocks.4.1").count == 4
    found = world.localize()[0]
    assert edit("most_frequent", mask=found).count == min(3, found.count)
    assert edit("largest_z", mask=found).count == min(3, found.count)


def test_masks_of_two_models_are_reported(world, app):
    given = {"operation": "union", "count": 1, "neurons": "", "seed": 0}
    pack, mask = app.module("nodes.neurons.mask"), world.mask(count=2)
    for size, different in ((1.0, False), (1.1, True)):
        one, other = (pack.NeuronMask(mask.scales, (), {"a": (value,)}) for value in (1.0, size))
        report = app.run("GBX_NeuronMaskEdit", mask=one, other_mask=other, **given)[1]
        assert ("do not belong together" in report) == different


def test_the_report_compares_images(world, app):
    images = torch.rand(3, 64, 64, 3, generator=torch.Generator().manual_seed(0))
    figure, report, table, _ = app.run(
        "GBX_MemorizationReport",
        mask=world.mask(),
        images_before=images,
        images_after=images.flip(0),
        reference_image=images[:1],
    )
    assert figure.shape[0] == 1
    assert "median similarity to the reference" in report and "does not remove" in report
    assert table.count("\n") == 41


def test_the_report_measures_prompt_alignment(world, app):
    images, _, caption = app.run("GBX_DemoPicture", image_index=0, count=2, part="face")

    def line(**given):
        report = app.run("GBX_MemorizationReport", mask=world.mask(), **given)[1]
        return next(
            (line for line in report.splitlines() if line.startswith("Prompt alignment")), None
        )

    measured = line(
        images_before=images[:1], images_after=images[1:], prompt=caption, clip=world.clip
    )
    before, after = (
        float(measured.split(f"{name} ")[1].split(",")[0]) for name in ("before", "after")
    )
    assert before > 0.9 > 0.8 > after and "requested attributes" in measured
    assert line(prompt=caption, clip=world.clip) is None  # no images, nothing to report
    for given, why in (
        ({}, "there is no prompt"),
        ({"prompt": caption}, "there is no CLIP:"),
        ({"prompt": "a cat", "clip": world.clip}, "the prompt requests nothing"),
        ({"prompt": "a cat", "clip": reduced.checkpoint("sdxl")[1]}, "there is no CLIP_VISION"),
    ):
        assert line(images_before=images, **given).startswith(
            f"Prompt alignment: not measured, because {why}"
        )


def test_the_baked_model_goes_through_cores_saver_and_loader(world, monkeypatch, tmp_path):
    """A reduced SD1.5, saved and loaded by core, has the rows scaled and all others as they
    were.
    """
    import comfy.sd
    from comfy.supported_models import SD15

    model = reduced.checkpoint("sd15")[0]
    expected = {
        name: value.clone() for name, value in model.model.diffusion_model.state_dict().items()
    }
    path = "input_blocks.1.1.transformer_blocks.0.attn2.to_v"
    pack = world.app.module("nodes.neurons.mask")
    baked = world.app.run(
        "GBX_BakeNeuronMask",
        model=model,
        strength=1.0,
        mask=pack.NeuronMask({path: {3: 0.0, 7: -0.5}}),
    )[0]
    file = str(tmp_path / "baked.safetensors")
    comfy.sd.save_checkpoint(file, baked)
    monkeypatch.setitem(SD15.unet_config, "model_channels", 32)
    monkeypatch.setitem(SD15.unet_config, "context_dim", 64)
    loaded = comfy.sd.load_checkpoint_guess_config(file, output_vae=False, output_clip=False)[0]
    weights = loaded.model.diffusion_model.state_dict()
    expected[f"{path}.weight"][3], expected[f"{path}.weight"][7] = (
        0,
        expected[f"{path}.weight"][7] * -0.5,
    )
    assert weights.keys() == expected.keys()
    assert all(
        torch.equal(weights[name].float(), expected[name].to(weights[name]).float())
        for name in weights
    )


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        (
            "NeuronStatistics",
            {"prompts": "one", "prompts_file": "", "layers": "up", "filename_prefix": ""},
            "two prompts or more",
        ),
        (
            "NeuronStatistics",
            {"prompts": ORDINARY, "prompts_file": "", "layers": "nose", "filename_prefix": ""},
            "matches 'nose'",
        ),
        (
            "NeuronStatistics",
            {"prompts": "", "prompts_file": "../x.txt", "layers": "up", "filename_prefix": ""},
            "no list of prompts",
        ),
        (
            "CalibrateThreshold",
            {
                "prompts": "a",
                "prompts_file": "",
                "memorized_prompts": "",
                "deviations": 1.0,
                **SMALL,
            },
            "3 or more",
        ),
        ("NemoLocalize", {"layers": "middle"}, "do not cover"),
        ("NemoLocalize", {"clip": "sd15"}, "connect the CLIP that belongs"),
        ("NemoLocalize", {"width": 32, "height": 32}, "width is 32: it must be from 56"),
    ],
)
def test_bad_input_raises_a_readable_error(world, name, changed, sentence):
    run = (
        world.localize
        if name == "NemoLocalize"
        else lambda **given: world.run(name, clip=world.clip, **given)
    )
    if "clip" in changed:
        changed = {"clip": reduced.checkpoint(changed["clip"])[1]}
    with pytest.raises(ValueError, match=sentence):
        run(**changed)


def test_a_transformer_has_no_parts(world):
    model, clip, _ = reduced.checkpoint("flux")
    with pytest.raises(ValueError, match="No layer matches 'up': write all, or one of double_"):
        world.run(
            "NeuronStatistics",
            model=model,
            clip=clip,
            prompts=ORDINARY,
            prompts_file="",
            layers="up",
            filename_prefix="",
        )
