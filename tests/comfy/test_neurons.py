"""The neurons family inside a real ComfyUI: masks that cost no bit when empty, searches that leave no hook behind."""

import json

import pytest
import reduced
import torch
from tapping import hooks_left

PROMPT = "portrait of zorvex quill"
NAMES = ("mirella thrum", "bandor pyke", "oquin veshti", "zorvex quill", "sybil orcrane")
#: So that little stands out, and searches are short.
ORDINARY = "\n".join(f"portrait of {name}" for name in NAMES)
SMALL = {"seeds": 2, "seed": 1, "timestep": "961 (official code)", "width": 64, "height": 64}
UP = "output_blocks.4.1, output_blocks.5.1"


class World:
    """The demo model with what the nodes of the family make of it."""

    def __init__(self, comfy):
        self.comfy = comfy
        self.model, self.clip, self.vae = comfy.run("GBX_LoadDemoModel", weights="avatars-v1")
        given = {"clip": self.clip, "prompts": ORDINARY, "file": "", "layers": UP, "save_as": ""}
        self.statistics = self.run("NeuronStatistics", **given)[0]

    def run(self, name, **inputs):
        return self.comfy.run(f"GBX_{name}", **({"model": self.model} | inputs))

    def mask(self, scale=0.0, count=20):
        pack = self.comfy.module("nodes.neurons.mask")
        paths = [f"output_blocks.{block}.1.transformer_blocks.0.attn2.to_v" for block in (4, 5)]
        return pack.NeuronMask(pack.of_neurons([(path, i) for path in paths for i in range(count)], scale))

    def masked(self, mask, model=None, **changes):
        given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "rows": "both (paper)"} | changes
        return self.run("NemoNeuronMask", mask=mask, **given, **({"model": model} if model else {}))[0]

    def saved_mask(self):
        mask = self.comfy.module("nodes.neurons.mask")
        path = next(iter(self.statistics.layers))
        found = mask.NeuronMask({path: {1: 0.0}}, (), self.statistics.fingerprint)
        return self.comfy.run("GBX_SaveNeuronMask", mask=found, filename_prefix="glassbox/other")[0]

    def sample(self, model, cfg=3.0, steps=2, text=PROMPT):
        positive, negative = (self.comfy.run("CLIPTextEncode", clip=self.clip, text=t)[0] for t in (text, ""))
        given = {"seed": 7, "steps": steps, "cfg": cfg, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
        latent = {"samples": torch.zeros(1, 8, 8, 8)}
        return self.comfy.run("KSampler", model=model, positive=positive, negative=negative, latent_image=latent,
                              **given)[0]["samples"]  # fmt: skip

    def localize(self, **changes):
        given = {"clip": self.clip, "statistics": self.statistics, "prompts": PROMPT, "layers": UP, "threshold": 0.2,
                 "criterion": "same seed (paper)", "mode": "fast",
                 "blocked_below": 0.97, "first_theta": 5.0, "time_budget": 0.0}  # fmt: skip
        return self.run("NemoLocalize", **(given | SMALL | changes))


@pytest.fixture(scope="module")
def world(comfy):
    return World(comfy)


@pytest.mark.parametrize(("blocked_below", "drawn"), [(0.97, 0.97), (0.0, 0.2)])
def test_the_figure_shows_what_the_search_had_to_get_below(world, monkeypatch, blocked_below, drawn):
    drawing, figures = world.comfy.module("nodes.neurons.drawing"), []
    monkeypatch.setattr(drawing, "search", lambda figure, *given, draw=drawing.search: (
        draw(figure, *given), figures.append(figure)))  # fmt: skip
    world.localize(blocked_below=blocked_below, time_budget=0.05)
    *_, line = figures[0].axes[0].lines
    assert (line.get_ydata()[0], line.get_label()) == (drawn, f"blocked below {drawn:.3f}")


def test_statistics(world):
    found, report, file = world.run(
        "NeuronStatistics", clip=world.clip, prompts=ORDINARY, file="", layers="up", save_as="glassbox/n"
    )
    assert found.count == 5 and len(found.layers) == 9
    assert "Saved as glassbox/n_00001_.safetensors" in report
    again, told = world.run("LoadNeuronStatistics", file=file)
    assert again.count == 5 and "another checkpoint" not in told
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
    one, *_ = world.run("NeuronStatistics", clip=world.clip, prompts="portrait, smiling\nportrait, smiling", file="",
                       layers=UP, save_as="")  # fmt: skip
    assert torch.allclose(one.layers[path].mean.float(), seen[-1].abs().mean(0), rtol=1e-5, atol=1e-6)


def test_statistics_merge_to_those_of_all(world):
    lines = ORDINARY.splitlines()
    given = {"clip": world.clip, "file": "", "layers": UP, "save_as": ""}
    first, *_ = world.run("NeuronStatistics", prompts="\n".join(lines[:2]), **given)
    both, *_ = world.run("NeuronStatistics", prompts="\n".join(lines[2:]), previous=first, **given)
    for path, moments in world.statistics.layers.items():
        assert torch.allclose(both.layers[path].mean, moments.mean, atol=1e-6)
        assert torch.allclose(both.deviation(path), world.statistics.deviation(path), atol=1e-6)


def test_one_prompt_may_be_added_to_statistics(world):
    given = {"clip": world.clip, "prompts": "portrait", "file": "", "layers": UP, "save_as": ""}
    assert world.run("NeuronStatistics", previous=world.statistics, **given)[0].count == 6


def test_a_lora_counts_in_the_statistics(world):
    key = "diffusion_model.output_blocks.4.1.transformer_blocks.0.attn2.to_v.weight"
    patched = world.model.clone()
    patched.add_patches({key: ("diff", (torch.full((64, 128), 0.1),))}, 1.0)
    other, *_ = world.run("NeuronStatistics", model=patched, clip=world.clip, prompts=ORDINARY, file="", layers=UP,
                         save_as="")  # fmt: skip
    path = key.removeprefix("diffusion_model.").removesuffix(".weight")
    assert not torch.allclose(other.layers[path].mean, world.statistics.layers[path].mean, rtol=0.01)
    assert "another checkpoint" in world.run("LoadNeuronMask", model=patched, file=world.saved_mask())[2]
    mask, _, _, told = world.localize(model=patched, time_budget=0.05)
    assert told.startswith("These statistics are of another checkpoint or LoRA") and mask.fingerprint != {}
    assert world.statistics.fingerprint[path] != mask.fingerprint[path] == other.fingerprint[path]
    with pytest.raises(ValueError, match="different models or LoRAs"):
        world.run("NeuronStatistics", clip=world.clip, prompts=ORDINARY, file="", layers=UP, save_as="", previous=other)


def test_score_of_a_list(world):
    figure, best, memorised, over, table, report = world.run(
        "MemorizationScore", clip=world.clip, prompts=f"{PROMPT}\nportrait, smiling", file="", threshold=-1.0,
        text_norm=True, save_as="glassbox/scores", **SMALL)  # fmt: skip
    assert figure.shape[0] == 1 and memorised and -1 < best < 1
    assert over.splitlines() == [PROMPT, "portrait, smiling"]
    assert table.splitlines()[0].startswith("prompt,score,memorised,text norm,seed 0")
    assert "Small-latent score" in report and "2407.21720" in report
    alone = world.run("MemorizationScore", clip=world.clip, prompts=PROMPT, file="", threshold=0.0, text_norm=False,
                      save_as="", **SMALL)  # fmt: skip
    assert f"{alone[1]:.6f}" in table


def test_calibration(world):
    threshold, figure, report = world.run("CalibrateThreshold", clip=world.clip, prompts=ORDINARY, file="",
                                          memorized=PROMPT, deviations=1.0, **SMALL)  # fmt: skip
    assert 0 < threshold < 1 and figure.shape[-1] == 3
    assert "False positives to expect" in report and "AUROC" in report


def test_ablation(world):
    _, layers, report = world.run("LayerAblation", clip=world.clip, prompts=PROMPT, **SMALL)
    assert all(path.endswith("attn2.to_v") for path in layers.split(", "))
    assert report.count("without") == 5 + 16
    assert hooks_left(world.model) == 0


@pytest.mark.parametrize("rows", ["both (paper)", "conditional only"])
def test_an_empty_mask_and_strength_0_change_no_bit(world, rows):
    plain = world.sample(world.model)
    assert torch.equal(world.sample(world.masked(world.mask(count=0), rows=rows)), plain)
    assert torch.equal(world.sample(world.masked(world.mask(), strength=0.0, rows=rows)), plain)
    assert torch.equal(world.sample(world.masked(world.mask(scale=1.0), rows=rows)), plain)
    assert not torch.equal(world.sample(world.masked(world.mask(), rows=rows)), plain)
    assert hooks_left(world.model) == 0


@pytest.mark.parametrize("scale", [0.0, 0.5, -1.0])
def test_a_mask_is_exactly_a_scaled_row(world, scale):
    """Zero and powers of two are exact; the baked model paints the same bits."""
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
    assert torch.allclose(world.sample(world.masked(world.mask(0.3))), world.sample(baked), atol=1e-3)


def test_masks_stack_in_either_order(world):
    first, second = world.mask(0.5, count=12), world.mask(0.5, count=30)
    one = world.sample(world.masked(second, model=world.masked(first)))
    other = world.sample(world.masked(first, model=world.masked(second)))
    assert torch.equal(one, other)
    assert not torch.equal(one, world.sample(world.masked(second)))


def test_conditional_rows_only(world):
    """At CFG 1 there are no other rows; at CFG 3 the unconditional ones keep the untouched values."""
    both, only = (world.masked(world.mask(), rows=rows) for rows in ("both (paper)", "conditional only"))
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


def test_fast_finds_what_exact_finds(world):
    found = [world.localize(mode=mode, seeds=4, layers="output_blocks.5.1") for mode in ("fast", "exact")]
    assert found[0][0].scales == found[1][0].scales and found[0][0].count
    assert hooks_left(world.model) == 0


def test_a_time_budget_keeps_the_best_so_far(world):
    mask, _, _, report = world.localize(time_budget=0.05)
    assert "time was up" in report
    assert all(not found.details["finished"] for found in mask.findings)


def test_a_prompt_that_is_not_memorised_gives_an_empty_mask(world):
    mask, _, _, report = world.localize(threshold=1.0)
    assert mask.count == 0 and "skipped" in report
    assert torch.equal(world.sample(world.masked(mask)), world.sample(world.model))


def test_no_hook_is_left_when_the_user_stops(world, comfy, monkeypatch):
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


def test_stop_keeps_the_best_so_far(world, comfy, monkeypatch):
    """Pressed in the refinement of the first of two prompts: its neurons so far, and the other is not begun."""
    import comfy.model_management as management

    calls = {"made": 0, "last": 10**6}

    def stop():
        calls["made"] += 1
        if calls["made"] == calls["last"]:
            raise management.InterruptProcessingException

    monkeypatch.setattr(management, "throw_exception_if_processing_interrupted", stop)
    whole = world.localize(mode="exact")[0]
    calls = {"made": 0, "last": calls["made"] - 3}
    best, _, _, report = world.localize(mode="exact", prompts=f"{PROMPT}\nportrait of mirella thrum")
    assert "stopped by you (the best so far)" in report and "1 of 2 prompt(s) were looked at" in report
    assert set(whole.neurons) <= set(best.neurons) and not best.findings[0].details["finished"]
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
    file, text = world.comfy.run("GBX_SaveNeuronMask", mask=mask, filename_prefix="glassbox/m")
    assert json.loads(text)["findings"][0]["prompt"] == PROMPT
    again, table, report = world.run("LoadNeuronMask", file=file)
    assert again == mask and "another checkpoint" not in report
    assert table.count("\n") == mask.count + 1
    assert torch.equal(world.sample(world.masked(again)), world.sample(world.masked(mask)))


def test_edit(world, comfy):
    first, second = world.mask(count=4), world.mask(count=6)

    def edit(operation, mask=first, **given):
        defaults = {"count": 3, "names": "", "seed": 0, "other": second, "model": world.model}
        return comfy.run("GBX_NeuronMaskEdit", mask=mask, operation=operation, **(defaults | given))[0]

    assert (edit("union").count, edit("intersection").count) == (12, 8)
    assert edit("drop those of the other", mask=second, other=first).count == 4
    control = edit("random control")
    assert control.count == first.count and not set(control.neurons) & set(first.neurons)
    assert edit("keep named", names="output_blocks.4.1 1, 2").count == 2
    assert edit("drop named", names="output_blocks.4.1").count == 4
    found = world.localize()[0]
    assert edit("most frequent over prompts", mask=found).count == min(3, found.count)
    assert edit("largest z", mask=found).count == min(3, found.count)


def test_masks_of_two_models_are_told_apart(world, comfy):
    given = {"operation": "union", "count": 1, "names": "", "seed": 0}
    pack, mask = comfy.module("nodes.neurons.mask"), world.mask(count=2)
    for size, told in ((1.0, False), (1.1, True)):
        one, other = (pack.NeuronMask(mask.scales, (), {"a": value}) for value in (1.0, size))
        report = comfy.run("GBX_NeuronMaskEdit", mask=one, other=other, **given)[1]
        assert ("do not belong together" in report) == told


def test_report(world, comfy):
    images = torch.rand(3, 64, 64, 3, generator=torch.Generator().manual_seed(0))
    figure, report, table = comfy.run("GBX_NeuronReport", mask=world.mask(), before=images, after=images.flip(0),
                                      reference=images[:1])  # fmt: skip
    assert figure.shape[0] == 1
    assert "median similarity to the reference" in report and "does not remove" in report
    assert table.count("\n") == 41


def test_the_report_tells_how_far_pictures_obey_the_prompt(world, comfy):
    pictures, _, caption = comfy.run("GBX_DemoPicture", picture=0, count=2, part="face")

    def line(**given):
        report = comfy.run("GBX_NeuronReport", mask=world.mask(), **given)[1]
        return next((line for line in report.splitlines() if line.startswith("Agreement")), None)

    told = line(before=pictures[:1], after=pictures[1:], prompt=caption, clip=world.clip)
    before, after = (float(told.split(f"{name} ")[1].split(",")[0]) for name in ("before", "after"))
    assert before > 0.9 > 0.8 > after and "attributes asked for" in told
    assert line(prompt=caption, clip=world.clip) is None  # no pictures, nothing to tell
    for given, why in (
        ({}, "there is no prompt"), ({"prompt": caption}, "there is no CLIP:"),
        ({"prompt": "a cat", "clip": world.clip}, "the prompt asks for nothing"),
        ({"prompt": "a cat", "clip": reduced.checkpoint("sdxl")[1]}, "there is no CLIP_VISION"),
    ):  # fmt: skip
        assert line(before=pictures, **given).startswith(f"Agreement with the prompt: absent, because {why}")


def test_agreement_with_clip(comfy, tmp_path):
    """SDXL's CLIP-G beside a small CLIP_VISION: the cosine of what ComfyUI's own models give."""
    from comfy.clip_vision import ClipVisionModel

    pack, clip = comfy.module("nodes.host.agreement"), reduced.checkpoint("sdxl")[1]

    def vision(channels):
        config = tmp_path / f"{channels}.json"
        config.write_text(json.dumps({
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "hidden_act": "gelu", "image_size": 28, "patch_size": 14, "num_channels": 3, "projection_dim": channels,
            "model_type": "clip_vision_model",
        }))  # fmt: skip
        model = ClipVisionModel(str(config))
        reduced.fill(model.model, torch.Generator().manual_seed(5))
        return model

    pictures, seen = torch.rand(3, 40, 40, 3, generator=torch.Generator().manual_seed(0)), vision(64)
    with torch.inference_mode():
        found = pack.measure("a red hat", pictures, clip, seen)
        text = clip.encode_from_tokens(clip.tokenize("a red hat"), return_pooled=True)[1]
        wanted = [torch.cosine_similarity(seen.encode_image(one[None])["image_embeds"], text) for one in pictures]
        torch.testing.assert_close(found.values, torch.cat(wanted), atol=1e-6, rtol=1e-5)
        for broken, why in (((clip, vision(48)), "48 channels and the CLIP's 64"),
                            ((reduced.checkpoint("flux")[1], seen), "no projection")):  # fmt: skip
            with pytest.raises(pack.AbsentError, match=why):
                pack.measure("a red hat", pictures, *broken)


def test_the_baked_model_goes_through_cores_saver_and_loader(world, monkeypatch, tmp_path):
    """A reduced SD1.5, saved and loaded by core, has the rows scaled and all others as they were."""
    import comfy.sd
    from comfy.supported_models import SD15

    model = reduced.checkpoint("sd15")[0]
    expected = {name: value.clone() for name, value in model.model.diffusion_model.state_dict().items()}
    path = "input_blocks.1.1.transformer_blocks.0.attn2.to_v"
    pack = world.comfy.module("nodes.neurons.mask")
    baked = world.comfy.run("GBX_BakeNeuronMask", model=model, strength=1.0,
                      mask=pack.NeuronMask({path: {3: 0.0, 7: -0.5}}))[0]  # fmt: skip
    file = str(tmp_path / "baked.safetensors")
    comfy.sd.save_checkpoint(file, baked)
    monkeypatch.setitem(SD15.unet_config, "model_channels", 32)
    monkeypatch.setitem(SD15.unet_config, "context_dim", 64)
    loaded = comfy.sd.load_checkpoint_guess_config(file, output_vae=False, output_clip=False)[0]
    weights = loaded.model.diffusion_model.state_dict()
    expected[f"{path}.weight"][3], expected[f"{path}.weight"][7] = 0, expected[f"{path}.weight"][7] * -0.5
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name].float(), expected[name].to(weights[name]).float()) for name in weights)


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        ("NeuronStatistics", {"prompts": "one", "file": "", "layers": "up", "save_as": ""}, "two prompts or more"),
        ("NeuronStatistics", {"prompts": ORDINARY, "file": "", "layers": "nose", "save_as": ""}, "called 'nose'"),
        ("NeuronStatistics", {"prompts": "", "file": "../x.txt", "layers": "up", "save_as": ""}, "no list of prompts"),
        ("CalibrateThreshold", {"prompts": "a", "file": "", "memorized": "", "deviations": 1.0, **SMALL}, "3 or more"),
        ("NemoLocalize", {"layers": "middle"}, "do not cover"),
        ("NemoLocalize", {"clip": "sd15"}, "connect the CLIP that belongs"),
        ("NemoLocalize", {"prompts": " "}, "no prompt to localise"),
        ("NemoLocalize", {"width": 32, "height": 32}, "7 x 7"),
    ],
)
def test_bad_input_is_told_in_a_sentence(world, name, changed, sentence):
    run = world.localize if name == "NemoLocalize" else lambda **given: world.run(name, clip=world.clip, **given)
    if "clip" in changed:
        changed = {"clip": reduced.checkpoint(changed["clip"])[1]}
    with pytest.raises(ValueError, match=sentence):
        run(**changed)


def test_a_model_without_values_is_refused(world):
    model = reduced.checkpoint("flux")[0]
    with pytest.raises(ValueError, match="no cross-attention values"):
        world.run("NeuronStatistics", model=model, clip=world.clip, prompts=ORDINARY, file="", layers="up", save_as="")
