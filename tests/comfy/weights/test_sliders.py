"""Sliders inside a real ComfyUI: what stock Load LoRA in a row makes of the same files."""

from pathlib import Path

import pytest
import reduced
import torch

SIDE = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of ComfyUI's list of LoRAs."""
    import folder_paths

    path = tmp_path_factory.mktemp("sliders")
    folder_paths.add_model_folder_path("loras", str(path))
    return path


def listed():
    import folder_paths

    folder_paths.filename_list_cache.clear()


def random_lora(app, model, seed):
    """A LoRA of a Train Slider that changes every layer of attention a little."""
    half = app.module("nodes.weights.slider_training_comfy")
    learned = app.module("nodes.weights.learned_space_comfy")
    training = app.module("nodes.weights.slider_training")
    layout, _ = learned.layout_of(model, half.trained_layers(model, ""), 2)
    with torch.inference_mode(False), torch.no_grad():
        factors = training.SliderFactors(layout, 1, seed)
        generator = torch.Generator().manual_seed(seed)
        factors.flat.copy_(0.1 * torch.randn(factors.flat.shape, generator=generator))
        return half._lora(model, factors, 0)


def write(app, path, tensors, increase="", decrease=""):
    phrases = app.module("nodes.weights.slider_phrases")
    labels = phrases.SliderPhrases(increase=increase, decrease=decrease)
    header = labels.header() if increase else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    app.module("nodes.weights.lora_writer").write(tensors, path, "slider", header)
    listed()


def sliders(app, model, edits, clip=None, files=None):
    given = {"model": [model], "edits": [edits]}
    if clip is not None:
        given["clip"] = [clip]
    if files is not None:
        given["files"] = files
    return app.run("GBX_Sliders", **given)


def sampled(app, model, clip):
    prompts = {
        name: app.run("CLIPTextEncode", clip=clip, text=text)[0]
        for name, text in (("positive", "portrait"), ("negative", ""))
    }
    channels = model.get_model_object("latent_format").latent_channels
    choices = {"seed": 5, "steps": 2, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal"}
    blank = {"samples": torch.zeros(1, channels, SIDE, SIDE)}
    latent = app.run("KSampler", model=model, latent_image=blank, denoise=1.0, **prompts, **choices)
    return latent[0]["samples"]


def text_lora(clip, seed):
    """A LoRA of kohya's names that changes a layer of the text encoder."""
    import comfy.lora

    keys = comfy.lora.model_lora_keys_clip(clip.cond_stage_model, {})
    stem = next(name for name in keys if name.startswith("lora_te") and name.endswith("mlp_fc1"))
    rows, columns = clip.cond_stage_model.state_dict()[keys[stem]].shape
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{stem}.lora_up.weight": torch.randn(rows, 2, generator=generator),
        f"{stem}.lora_down.weight": torch.randn(2, columns, generator=generator),
        f"{stem}.alpha": torch.tensor(2.0),
    }


@pytest.mark.parametrize("architecture", ["sd15", "flux"])
@torch.inference_mode()
def test_three_sliders_are_load_lora_three_times(app, folder, architecture):
    model, clip, _ = reduced.checkpoint(architecture)
    names = [f"{architecture}/{name}" for name in ("old", "smile", "film")]
    for seed, name in enumerate(names):
        tensors = random_lora(app, model, seed)
        if architecture == "sd15":
            tensors |= text_lora(clip, seed)
        write(app, folder / f"{name}.safetensors", tensors)
    plain = sampled(app, model, clip)
    stock = (model, clip)
    strengths = (0.8, -0.5, 1.25)
    for name, strength in zip(names, strengths, strict=True):
        stock = app.run(
            "LoraLoader",
            model=stock[0],
            clip=stock[1],
            lora_name=f"{name}.safetensors",
            strength_model=strength,
            strength_clip=strength,
        )
    expected = sampled(app, *stock)
    assert not torch.equal(expected, plain)
    edits = ", ".join(f"{n}: {s}" for n, s in zip(names, strengths, strict=True))
    patched, text, label = sliders(app, model, edits, clip)
    assert torch.equal(sampled(app, patched, text), expected)
    assert label == f"{names[0]} +0.8, {names[1]} -0.5, {names[2]} +1.25"
    # other case, other order of equal strengths, and one at 0
    patched, text, _ = sliders(app, model, edits.upper() + f", {names[0]}: 0", clip)
    assert torch.equal(sampled(app, patched, text), expected)
    # without a CLIP the model alone is changed, as by Load LoRA (Model Only)
    only = model
    for name, strength in zip(names, strengths, strict=True):
        only = app.run(
            "LoraLoaderModelOnly",
            model=only,
            lora_name=f"{name}.safetensors",
            strength_model=strength,
        )[0]
    patched, nothing, _ = sliders(app, model, edits)
    assert torch.equal(sampled(app, patched, clip), sampled(app, only, clip))
    assert not hasattr(nothing, "tokenize")
    assert not model.patches and torch.equal(sampled(app, model, clip), plain)


@pytest.mark.parametrize("edits", ["", "off/old: 0", "off/old: 1, off/OLD: -1"])
def test_at_zero_the_model_is_that_which_came_in(app, folder, edits):
    model, clip, _ = reduced.checkpoint("sd15")
    write(app, folder / "off" / "old.safetensors", random_lora(app, model, 1))
    patched, text, label = sliders(app, model, edits, clip)
    assert patched is model and text is clip and label == "no slider"


def test_files_by_wire_have_the_names_of_their_phrases(app):
    import folder_paths

    model, clip, _ = reduced.checkpoint("sd15")
    output = Path(folder_paths.get_output_directory())
    tensors = [random_lora(app, model, seed) for seed in (1, 2)]
    files = [f"wired/slider_{number}_00001_.safetensors" for number in (1, 2)]
    write(app, output / files[0], tensors[0], "very old", "young")
    write(app, output / files[1], tensors[1])
    patched, _, label = sliders(app, model, "Very_Old: 0.5, slider_2: -1", files=["", *files])
    assert label == "very_old +0.5, slider_2 -1"
    stock = model
    for lora, strength in zip(tensors, (0.5, -1.0), strict=True):
        given = {"lora": lora, "strength_model": strength}
        stock = app.run("LoraModelLoader", model=stock, **given)[0]
    assert torch.equal(sampled(app, patched, clip), sampled(app, stock, clip))
    node = app.classes["GBX_Sliders"]
    shown = node.EXECUTE_NORMALIZED(model=[model], edits=[""], files=files).ui
    assert shown["glassbox_sliders"] == [
        [{"name": "very_old", "increase": "very old", "decrease": "young"}, {"name": "slider_2"}]
    ]


@pytest.mark.parametrize(
    ("edits", "files", "message"),
    [
        ("nobody: 1", None, "There is no LoRA 'nobody' in models/loras: name a file without"),
        ("a", None, "'a' is not an edit: write a name, a colon and a strength"),
        ("", ["gone.safetensors"], "There is no file 'gone.safetensors'|no file gone"),
        ("", ["../gone.safetensors"], "leads out of ComfyUI's output folder"),
    ],
)
def test_what_is_missing_gets_a_sentence(app, edits, files, message):
    model, _, _ = reduced.checkpoint("sd15")
    with pytest.raises(ValueError, match=message):
        sliders(app, model, edits, files=files)


def test_a_lora_of_another_network_gets_a_sentence(app, folder):
    model, clip, _ = reduced.checkpoint("sd15")
    other, _, _ = reduced.checkpoint("flux")
    write(app, folder / "strange" / "flux.safetensors", random_lora(app, other, 1))
    with pytest.raises(
        ValueError, match=r"flux.safetensors changes no layer of this MODEL or CLIP"
    ):
        sliders(app, model, "strange/flux: 1", clip)
    with pytest.raises(ValueError, match=r"flux.safetensors changes no layer of this MODEL:"):
        sliders(app, model, "strange/flux: 1")


def test_a_changed_file_is_read_again(app, folder):
    model, clip, _ = reduced.checkpoint("sd15")
    path = folder / "changing" / "old.safetensors"
    node = app.classes["GBX_Sliders"]
    marks = []
    images = []
    for seed in (1, 2):
        write(app, path, random_lora(app, model, seed))
        for text in ("changing/old: 1", "Changing/Old: 1, unknown: 1"):
            marks.append(node.fingerprint_inputs(edits=[text]))
        images.append(sampled(app, sliders(app, model, "changing/old: 1")[0], clip))
    assert len(set(marks)) == 2 and marks[0] == marks[1] not in ("", "absent")
    assert not torch.equal(*images)


def test_labels_are_known_before_a_run(app, folder):
    model, _, _ = reduced.checkpoint("sd15")
    write(app, folder / "known" / "a.safetensors", random_lora(app, model, 1), "old", "young")
    write(app, folder / "known" / "b.safetensors", random_lora(app, model, 2))
    answer = app.module("nodes.weights.nodes_sliders").sliders_of("Known/A\nknown/b\nnobody")
    assert {"known/a", "known/b"} <= set(answer["files"])
    assert answer["sliders"] == {
        "Known/A": {"name": "known/a", "increase": "old", "decrease": "young"},
        "known/b": {"name": "known/b"},
    }


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("short.safetensors", b"abc", "header too small"),
        ("empty.safetensors", b"", "it is empty"),
        ("page.safetensors", b"<!DOCTYPE html>", "a web page"),
        ("pointer.safetensors", b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        ("junk.pt", b"no pickle at all", "cannot be read"),
    ],
)
@pytest.mark.parametrize("wired", [False, True], ids=["named", "wired"])
def test_a_file_that_cannot_be_read_gets_a_sentence(app, folder, name, content, cause, wired):
    import folder_paths

    model = app.run("GBX_LoadDemoModel", weights="avatars-v2")[0]
    place = Path(folder_paths.get_output_directory()) if wired else folder
    (place / name).write_bytes(content)
    listed()
    with pytest.raises(ValueError, match=f"^{name} .*{cause}"):
        sliders(app, model, f"{Path(name).stem}: 0.5", files=[name] if wired else None)
    assert sliders(app, model, f"{Path(name).stem}: 0", files=[name] if wired else None)[0] is model
