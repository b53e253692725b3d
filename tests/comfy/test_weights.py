"""The weights family inside a real ComfyUI: points on a MODEL, as LoRA files, and back."""

import members
import pytest
import torch
from safetensors.torch import load_file, save_file

COUNT = 8
#: Layers of the demo model.
LAYERS = {
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": (64, 64),
    "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_v": (128, 64),
    "mid_block.attentions.0.transformer_blocks.0.attn1.to_v": (128, 128),
    "up_blocks.2.attentions.1.transformer_blocks.0.attn2.to_q": (64, 64),
    "up_blocks.0.resnets.1.conv_shortcut": (256, 128),
}
WHOLE_RUN = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}


@pytest.fixture(scope="session")
def demo(comfy):
    """The demo model, a caption and a way to sample it."""
    model, clip, vae = comfy.run("GBX_LoadDemoModel", weights="avatars-v1")
    positive, negative = (comfy.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("portrait", ""))
    return Demo(comfy, model, vae, positive, negative)


class Demo:
    def __init__(self, comfy, model, vae, positive, negative):
        self.comfy, self.model, self.vae, self.positive, self.negative = comfy, model, vae, positive, negative

    def sample(self, model, steps=3, cfg=2.0, **changes):
        latent = {"samples": torch.zeros(1, 8, 16, 16)}
        given = {"seed": 3, "steps": steps, "cfg": cfg, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
        return self.comfy.run("KSampler", model=model, positive=self.positive, negative=self.negative,
                              latent_image=latent, **{**given, **changes})[0]["samples"]  # fmt: skip


@pytest.fixture(scope="session")
def lora_folder(comfy, tmp_path_factory):
    """Members in a folder of ComfyUI's LoRA list, and models/w2w in a folder of the test's own."""
    import folder_paths

    root = tmp_path_factory.mktemp("models")
    for kind in ("loras", "w2w"):
        (root / kind).mkdir()
        folder_paths.add_model_folder_path(kind, str(root / kind), is_default=True)
    (root / "loras" / "people").mkdir()
    for seed in range(COUNT):
        made = {name: (0.5 * down, up) for name, (down, up) in members.factors(seed, layers=LAYERS).items()}
        save_file(members.kohya(made), root / "loras" / "people" / f"member_{seed:02}.safetensors")
    folder_paths.filename_list_cache.clear()
    return root / "loras"


@pytest.fixture(scope="session")
def build(comfy, lora_folder):
    def run(**changed):
        given = {"folder": "people", "name": "test", "rank": 1, "components": 100, "form": "singular values",
                 "standardise": True, "unfit": "skip and name it", "storage": "float32"}  # fmt: skip
        wires = {name: changed.pop(name) for name in list(changed) if name.startswith("lora_")}
        return comfy.run("GBX_W2WBuildSpace", **{name: [value] for name, value in (given | changed).items()}, **wires)

    return run


@pytest.fixture(scope="session")
def space(build, comfy):
    return build()[0]


def draw(comfy, space, **changed):
    given = {"seed": 1, "count": 1, "components": 100, "spread": 1.0, "what": "drawn", "member": ""}
    return comfy.run("GBX_W2WSample", space=space, **(given | changed))[0]


@pytest.fixture(scope="session")
def point(comfy, space):
    return draw(comfy, space)[0]


def apply(comfy, model, point, **changed):
    return comfy.run("GBX_W2WApply", model=model, point=point, **(WHOLE_RUN | changed))[0]


def test_build_names_what_it_made(build):
    space, report = build(name="named")
    assert space.members[0] == "member_00" and space.components == COUNT - 1
    assert "8 members" in report and "components keep 100.0 % of a member" in report


def test_strength_0_is_the_model_itself(comfy, demo, point):
    assert apply(comfy, demo.model, point, strength=0.0) is demo.model
    assert apply(comfy, demo.model, point, strength=0.0, start_percent=0.5) is demo.model


def test_it_is_what_load_lora_makes_of_the_saved_file(comfy, demo, point):
    """The same patches: no difference at all."""
    import folder_paths

    tensors, file = comfy.run("GBX_W2WToLoRA", point=point, filename_prefix="loras/point")
    folder_paths.add_model_folder_path("loras", folder_paths.get_output_directory() + "/loras")
    folder_paths.filename_list_cache.clear()
    assert file == "loras/point_00001_.safetensors"
    name = file.removeprefix("loras/")
    (loaded,) = comfy.run("LoraLoaderModelOnly", model=demo.model, lora_name=name, strength_model=0.7)
    (wired,) = comfy.run("LoraModelLoader", model=demo.model, lora=tensors, strength_model=0.7)
    applied = demo.sample(apply(comfy, demo.model, point, strength=0.7))
    plain = demo.sample(demo.model)
    assert torch.equal(applied, demo.sample(loaded)) and torch.equal(applied, demo.sample(wired))
    assert not torch.equal(applied, plain)
    assert torch.equal(demo.sample(demo.model), plain)


def test_weights_are_the_members_own(comfy, demo, lora_folder, space):
    """With all components a member's point paints what its own file paints; difference below 2e-3 of latents of 1."""
    mine = draw(comfy, space, what="a member", member="member_02")[0]
    (loaded,) = comfy.run("LoraLoaderModelOnly", model=demo.model, lora_name="people/member_02.safetensors",
                          strength_model=1.0)  # fmt: skip
    assert (demo.sample(apply(comfy, demo.model, mine)) - demo.sample(loaded)).abs().max() < 2e-3


@pytest.mark.parametrize("span", [(0.0, 0.5), (0.5, 1.0), (0.0, 1.0)])
def test_start_and_end(comfy, demo, point, span):
    """By the weight function each step has the weights it should: compared with a run cut in two by hand."""
    start, end = span
    model = apply(comfy, demo.model, point, start_percent=start, end_percent=end)
    patched = apply(comfy, demo.model, point)
    sigmas = comfy.run("BasicScheduler", model=demo.model, scheduler="normal", steps=6, denoise=1.0)[0]
    edge = [float(demo.model.get_model_object("model_sampling").percent_to_sigma(p)) if p < 1 else -1.0 for p in span]
    latent = torch.zeros(1, 8, 16, 16)
    whole = custom(comfy, demo, model, sigmas, latent, noise=True)
    for number in range(len(sigmas) - 1):
        active = edge[1] < float(sigmas[number]) <= edge[0]
        which = patched if active else demo.model
        latent = custom(comfy, demo, which, sigmas[number : number + 2], latent, noise=number == 0)
    torch.testing.assert_close(whole, latent, atol=2e-4, rtol=1e-4)


def custom(comfy, demo, model, sigmas, latent, noise):
    noise = comfy.run("RandomNoise", noise_seed=5)[0] if noise else comfy.run("DisableNoise")[0]
    guider = comfy.run("CFGGuider", model=model, positive=demo.positive, negative=demo.negative, cfg=2.0)[0]
    sampler = comfy.run("KSamplerSelect", sampler_name="euler")[0]
    return comfy.run("SamplerCustomAdvanced", noise=noise, guider=guider, sampler=sampler, sigmas=sigmas,
                     latent_image={"samples": latent})[0]["samples"]  # fmt: skip


def test_intervals_stack_in_either_order_and_leave_the_model_alone(comfy, demo, space):
    first, second = draw(comfy, space, count=2)
    plain = demo.sample(demo.model)

    def late(model, point):
        return apply(comfy, model, point, start_percent=0.3)

    one = demo.sample(late(late(demo.model, first), second))
    other = demo.sample(late(late(demo.model, second), first))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert not torch.equal(one, plain) and torch.equal(demo.sample(demo.model), plain)
    assert not any(getattr(module, "weight_function", None) for module in demo.model.model.modules())


def test_an_interval_survives_a_stopped_run(comfy, demo, point, monkeypatch):
    """A run that fails midway leaves nothing behind."""
    plain, model = demo.sample(demo.model), apply(comfy, demo.model, point, start_percent=0.3)
    network = demo.model.model.diffusion_model

    def fail(*_, **__):
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(network, "forward", fail)
        with pytest.raises(RuntimeError, match="stopped"):
            demo.sample(model)
    assert torch.equal(demo.sample(demo.model), plain)


def test_delayed_injection_starts_where_the_official_code_starts(comfy, demo, point):
    """O8: of the 51 evaluations of 50 PNDM steps the first edited one, for t <= T, by start percent 1 - T / 999."""
    lora_patches = comfy.module("nodes.host.lora_patches")
    sampling = demo.model.get_model_object("model_sampling")
    times = [1 + 20 * step for step in reversed(range(50))]
    times = [times[0], times[1], *times[1:]]  # the second is evaluated twice
    assert len(times) == 51
    found = {}
    for threshold in (1000, 900, 800, 700, 600, 500, 400):
        span = lora_patches.interval(demo.model, max(0.0, 1 - threshold / 999), 1.0)
        held = [span.holds(float(sampling.sigma(torch.tensor(float(time))))) for time in times]
        found[threshold] = held.index(True)
        assert all(held[found[threshold] :])
    assert found == {1000: 0, 900: 6, 800: 11, 700: 16, 600: 21, 500: 26, 400: 31}


def test_an_interval_that_ends_before_it_starts(comfy, demo, point):
    with pytest.raises(ValueError, match="must start before it ends"):
        apply(comfy, demo.model, point, start_percent=0.6, end_percent=0.4)


def test_a_model_of_another_architecture_is_refused(comfy, point):
    import reduced

    model = reduced.checkpoint("flux")[0]
    for span in ({}, {"start_percent": 0.5}):
        with pytest.raises(ValueError, match="made for another base model"):
            apply(comfy, model, point, **span)


def test_every_layer_of_the_space_is_in_the_model(comfy, demo, point):
    lora_patches, export = comfy.module("nodes.host.lora_patches"), comfy.module("nodes.weights.lora_export")
    assert len(lora_patches.weight_targets(demo.model, export.to_tensors(point.layers()))) == len(LAYERS)


@pytest.mark.parametrize("architecture", ["sd15", "sdxl", "flux"])
def test_layer_names_of_real_architectures(comfy, architecture):
    """Every layer that a trainer may adapt keeps its place from ComfyUI's own name to a file and back."""
    import reduced

    keys, lora_patches = comfy.module("nodes.common.lora_keys"), comfy.module("nodes.host.lora_patches")
    model = reduced.checkpoint(architecture)[0]
    tensors, wanted = {}, {}
    for name, weight in model.model.state_dict().items():
        if name.startswith("diffusion_model.") and name.endswith(".weight") and weight.ndim >= 2:
            layer = keys.canonical(name.removesuffix(".weight"))
            down, up, alpha = keys.keys(layer)
            tensors |= {down: torch.ones(1, *weight.shape[1:]), up: torch.ones(weight.shape[0], 1)}
            tensors[alpha] = torch.tensor(1.0)
            wanted[name] = down
    assert len(set(wanted.values())) == len(wanted)
    found = lora_patches.weight_targets(model, tensors)
    assert set(found) == set(wanted)


def test_flux_layers_by_diffusers_names_change_a_part_of_a_fused_weight(comfy):
    import reduced

    lora_patches = comfy.module("nodes.host.lora_patches")
    model = reduced.checkpoint("flux")[0]
    name = "transformer.transformer_blocks.0.attn.to_k"
    tensors = {f"{name}.lora_A.weight": torch.ones(1, 128), f"{name}.lora_B.weight": torch.ones(128, 1),
               f"{name}.alpha": torch.tensor(2.0)}  # fmt: skip
    timed = lora_patches.apply_lora(model, tensors, 0.5, 0.0, 0.5)
    ((key, (change,)),) = timed.weight_wrapper_patches.items()
    weight = model.model.state_dict()[key]
    assert torch.equal(change(weight), weight)
    change._span.now = change._span.start
    wanted = weight.clone()
    wanted[128:256] += 1.0
    torch.testing.assert_close(change(weight), wanted)


def edit(comfy, point, text, **changed):
    given = {"keep": "", "units": "largest projection of a member", "debiasing": "jointly"}
    return comfy.run("GBX_W2WEdit", point=point, edits=text, **(given | changed))


@pytest.fixture(scope="session")
def directed(comfy, space):
    text = "member,beard,glasses\n" + "\n".join(f"member_{i:02},{i % 2},{int(i > 3)}" for i in range(COUNT))
    return comfy.run("GBX_W2WFitDirections", space=space, labels=text, method="least squares (paper)", components=3,
                     attributes="")  # fmt: skip


def test_edits_in_one_node_are_edits_in_two(comfy, demo, directed):
    assert "beard: reach" in directed[1]
    start = draw(comfy, directed[0])[0]
    one, told = edit(comfy, start, "beard: 0.8, glasses: -0.5")
    two = edit(comfy, edit(comfy, start, "beard: 0.8")[0], "glasses: -0.5")[0]
    assert told == "sample 1.0, beard +0.8, glasses -0.5"
    assert torch.equal(demo.sample(apply(comfy, demo.model, one)), demo.sample(apply(comfy, demo.model, two)))


def test_a_base_that_hands_over_to_its_edit(comfy, demo, directed):
    """Delayed injection, appendix I: the base until T and the edit from it on; the later, the smaller the change."""
    base = draw(comfy, directed[0])[0]
    edited = edit(comfy, base, "beard: 1")[0]

    def painted(percent):
        model = apply(comfy, demo.model, base, end_percent=percent)
        return demo.sample(apply(comfy, model, edited, start_percent=percent), steps=6)

    only_base, only_edited = (demo.sample(apply(comfy, demo.model, one), steps=6) for one in (base, edited))
    difference = [float((painted(percent) - only_base).norm()) for percent in (0.999, 0.6, 0.2)]
    assert 0 <= difference[0] < difference[1] < difference[2] <= 1.5 * float((only_edited - only_base).norm())


def test_lists_of_points(comfy, space, point):
    assert [len(draw(comfy, space, count=3)), len(draw(comfy, space, what="the mean"))] == [3, 1]
    other = draw(comfy, space, seed=9)[0]
    (line,) = comfy.run("GBX_W2WMix", first=point, second=other, start=0.0, end=1.0, steps=4)
    assert len(line) == 4 and torch.equal(line[3].coefficients, other.coefficients)
    how = {"across": "PC 1", "down": "PC 2", "low": -1.0, "high": 1.0, "steps": 3, "keep": ""}
    grid, told = comfy.run("GBX_W2WSweep", point=point, **how)
    assert len(grid) == len(told) == 9 and torch.equal(grid[4].coefficients, point.coefficients)


def project(comfy, space, **changed):
    return comfy.run("GBX_W2WProjectLoRA", space=space, **({"lora_name": "[none]", "components": 100} | changed))


def test_a_lora_becomes_a_point_and_back(comfy, space, lora_folder):
    found, report = project(comfy, space, lora_name="people/member_05.safetensors")
    torch.testing.assert_close(found.coefficients, space.coefficients[5], atol=1e-3, rtol=1e-3)
    assert "Kept by the space's components: 100.0 %" in report and "member_05 +1.000" in report
    (tensors, file) = comfy.run("GBX_W2WToLoRA", point=found, filename_prefix="")
    again, _ = project(comfy, space, lora=tensors)
    assert file == ""
    torch.testing.assert_close(again.coefficients, found.coefficients, atol=1e-3, rtol=1e-3)
    fewer, report = project(comfy, space, lora_name="people/member_05.safetensors", components=2)
    assert not fewer.coefficients[2:].any() and "100.0 %" not in report
    with pytest.raises(ValueError, match="choose a file, or connect one"):
        project(comfy, space)


def test_style_merge_is_the_sum(comfy, demo, point, lora_folder):
    style = members.kohya(members.factors(50, rank=3, layers=dict(list(LAYERS.items())[1:4])), 3.0)
    style["lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight"] = torch.ones(4, 1)
    style["lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight"] = torch.ones(1, 4)
    given = {"style_name": "[none]", "style": style, "strength_point": 0.8, "strength_style": 0.4}
    merged, file, report = comfy.run("GBX_W2WStyleMerge", point=point, filename_prefix="loras/styled", **given)
    assert file.startswith("loras/styled") and "text encoder" in report and "Cosine" in report
    (both,) = comfy.run("LoraModelLoader", model=apply(comfy, demo.model, point, strength=0.8), lora=style,
                        strength_model=0.4)  # fmt: skip
    (one,) = comfy.run("LoraModelLoader", model=demo.model, lora=merged, strength_model=1.0)
    torch.testing.assert_close(demo.sample(one), demo.sample(both), atol=2e-4, rtol=1e-4)


def test_spaces_are_saved_and_loaded_with_their_directions(comfy, directed):
    saved, report = comfy.run("GBX_W2WSaveSpace", space=directed[0], name="with directions", storage="int8")
    loaded, told = comfy.run("GBX_W2WLoadSpace", space_name="with directions.safetensors")
    assert "storage error" in report and "Directions: beard, glasses" in told
    assert torch.equal(loaded.directions["beard"].vector, directed[0].directions["beard"].vector)
    assert torch.equal(loaded.basis, saved.basis) and loaded.basis.dtype == torch.int8
    for name in ("../out", "", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="is no name for a file"):
            comfy.run("GBX_W2WSaveSpace", space=directed[0], name=name, storage="int8")


def test_the_loader_lists_and_refuses(comfy, space):
    folders = comfy.module("nodes.host.model_folders")
    assert "test.safetensors" in folders.space_names()
    with pytest.raises(ValueError, match="no weight space 'x'"):
        comfy.run("GBX_W2WLoadSpace", space_name="x")


def test_members_from_wires_and_folders_that_lead_out(comfy, build, lora_folder):
    wires = [members.kohya(members.factors(60 + seed, layers=LAYERS)) for seed in range(3)]
    space, _ = build(name="wires", lora_1=wires[:2], lora_2=[wires[2]])
    assert len(space.members) == COUNT + 3 and "wire 3" in space.members
    only, _ = build(name="only wires", folder="", lora_1=wires)
    assert len(only.members) == 3
    for folder in ("../..", "nowhere"):
        with pytest.raises(ValueError, match="There is no folder"):
            build(folder=folder)
    with pytest.raises(ValueError, match="give a folder inside models/loras, or connect LoRAs"):
        build(folder="")


def test_report(comfy, directed, point):
    spectrum, coefficients, words, table = comfy.run("GBX_W2WReport", space=directed[0], point=point)
    for figure in (spectrum, coefficients):
        assert figure.shape[0] == 1 and figure.shape[-1] == 3 and figure.min() >= 0 and figure.max() <= 1
    assert "Nearest members" in words and "Directions: beard" in words
    assert table.startswith("member") and len(table.splitlines()) == COUNT + 1
    assert len(comfy.run("GBX_W2WReport", space=directed[0])) == 4


def test_what_comfyui_trains_becomes_a_member(comfy, demo, build, tmp_path):
    """Core's trainer writes biases and norms too: they are dropped and their share is told."""
    latents = [{"samples": torch.randn(1, 8, 16, 16)} for _ in range(2)]
    given = {"batch_size": 1, "grad_accumulation_steps": 1, "steps": 1, "learning_rate": 1e-3, "rank": 2,
             "optimizer": "AdamW", "loss_function": "MSE", "seed": 0, "training_dtype": "fp32", "lora_dtype": "fp32",
             "algorithm": "LoRA", "gradient_checkpointing": False, "existing_lora": "[None]"}  # fmt: skip
    given = {name: [value] for name, value in given.items()}
    trained = [comfy.run("TrainLoraNode", model=[demo.model], latents=latents, positive=[demo.positive], **given)[1]
               for _ in range(2)]  # fmt: skip
    for lora in trained:
        for name, value in lora.items():
            value.data += 0.01 * torch.randn_like(value) if "alpha" not in name else 0
    space, report = build(name="trained", folder="", lora_1=trained, rank=2)
    assert len(space.members) == 2 and "Left out on average: full differences" in report


def test_saved_loras_have_alpha(comfy, point):
    import folder_paths

    file = comfy.run("GBX_W2WToLoRA", point=point, filename_prefix="loras/alpha")[1]
    tensors = load_file(f"{folder_paths.get_output_directory()}/{file}")
    assert sum(key.endswith(".alpha") for key in tensors) == len(LAYERS)


def test_the_space_that_the_pack_ships_fits_its_model(comfy, demo):
    """Every layer of it is in the demo model, it is small, and its directions can be fitted."""
    folders, export = comfy.module("nodes.host.model_folders"), comfy.module("nodes.weights.lora_export")
    shipped = [name for name in folders.space_names() if name.startswith("avatars-v1")]
    assert shipped == ["avatars-v1-w2w.safetensors"]
    assert folders.space_path(shipped[0]).stat().st_size <= 2_500_000
    space, _ = comfy.run("GBX_W2WLoadSpace", space_name=shipped[0])
    drawn = draw(comfy, space)[0]
    targets = comfy.module("nodes.host.lora_patches").weight_targets(demo.model, export.to_tensors(drawn.layers()))
    assert len(targets) == len(space.layout.slots) == 64
    directed, report = comfy.run("GBX_W2WFitDirections", space=space, labels="", method="least squares (paper)",
                                 components=48, attributes="")  # fmt: skip
    assert {"beard", "dark skin", "round glasses"} <= set(directed.directions) and "cross-validated" in report


def test_files_that_change_are_read_again(comfy, lora_folder):
    folders = comfy.module("nodes.host.model_folders")
    before = folders.lora_stamp("people/member_00.safetensors")
    path = lora_folder / "people" / "member_00.safetensors"
    path.touch()
    assert before and folders.lora_stamp("people/member_00.safetensors") != before
    assert folders.lora_stamp("[none]") == folders.lora_stamp(None) == ""
