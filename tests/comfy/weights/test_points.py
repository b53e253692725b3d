"""Points between others, from LoRAs, and out as LoRAs again, inside a real ComfyUI."""

import json

import members
import pytest
import torch
import weight_nodes
from safetensors.torch import load_file, save_file
from weight_nodes import LAYERS


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


def test_lists_of_points(family, app):
    assert [
        len(family.draw(family.space, count=3)),
        len(family.draw(family.space, source="mean")),
    ] == [3, 1]
    other = family.draw(family.space, seed=9)[0]
    line, _ = app.run(
        "GBX_W2WMix",
        first_point=family.point,
        second_point=other,
        start_fraction=0.0,
        end_fraction=1.0,
        count=4,
    )
    assert len(line) == 4 and torch.equal(line[3].coefficients, other.coefficients)
    how = {
        "direction": "PC 1",
        "second_direction": "PC 2",
        "min_strength": -1.0,
        "max_strength": 1.0,
        "count": 3,
        "preserved_directions": "",
    }
    grid, names = app.run("GBX_W2WSweep", point=family.point, **how)
    assert len(grid) == len(names) == 9 and torch.equal(
        grid[4].coefficients, family.point.coefficients
    )


def test_a_lora_becomes_a_point_and_back(family, app):
    found, report = family.project(lora_name="people/member_05.safetensors")
    torch.testing.assert_close(
        found.coefficients, family.space.coefficients[5], atol=1e-3, rtol=1e-3
    )
    assert "Kept by the space's components: 100.0 %" in report and "member_05 +1.000" in report
    tensors, file, _ = app.run(
        "GBX_W2WToLoRA", point=found, filename_prefix="", rank=0, file_format="kohya"
    )
    again, _ = family.project(lora=tensors)
    assert file == ""
    torch.testing.assert_close(again.coefficients, found.coefficients, atol=1e-3, rtol=1e-3)
    fewer, report = family.project(lora_name="people/member_05.safetensors", components=2)
    assert not fewer.coefficients[2:].any() and "100.0 %" not in report
    with pytest.raises(ValueError, match="choose a file, or connect one"):
        family.project()


def test_style_merge_is_the_sum(family, app):
    style = members.kohya(members.factors(50, rank=3, layers=dict(list(LAYERS.items())[1:4])), 3.0)
    style["lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight"] = torch.ones(4, 1)
    style["lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight"] = torch.ones(1, 4)
    given = {
        "style_lora_name": "none",
        "style_lora": style,
        "point_strength": 0.8,
        "style_strength": 0.4,
    }
    merged, file, report = app.run(
        "GBX_W2WStyleMerge", point=family.point, filename_prefix="loras/styled", **given
    )
    assert file.startswith("loras/styled") and "text encoder" in report and "Cosine" in report
    (both,) = app.run(
        "LoraModelLoader",
        model=family.apply(family.point, strength=0.8),
        lora=style,
        strength_model=0.4,
    )
    (one,) = app.run("LoraModelLoader", model=family.model, lora=merged, strength_model=1.0)
    torch.testing.assert_close(family.sample(one), family.sample(both), atol=2e-4, rtol=1e-4)


def test_saved_loras_have_alpha(family, app):
    import folder_paths

    file = app.run(
        "GBX_W2WToLoRA",
        point=family.point,
        filename_prefix="loras/alpha",
        rank=0,
        file_format="kohya",
    )[1]
    tensors = load_file(f"{folder_paths.get_output_directory()}/{file}")
    assert sum(key.endswith(".alpha") for key in tensors) == len(LAYERS)


def test_files_that_change_are_read_again(family, app):
    folders = app.module("nodes.host.folders")
    before = folders.lora_stamp("people/member_00.safetensors")
    path = family.folder / "people" / "member_00.safetensors"
    path.touch()
    assert before and folders.lora_stamp("people/member_00.safetensors") != before
    assert folders.lora_stamp("none") == ""


def test_a_sheet_of_a_sweep_and_of_samples(family, app):
    """Values on the axes, the nearest members in the labels, and the frames unchanged and in
    order.
    """
    grid, labels = app.run(
        "GBX_W2WSweep",
        point=family.point,
        direction="PC 1",
        second_direction="PC 2",
        min_strength=-1.0,
        max_strength=1.0,
        count=2,
        preserved_directions="",
    )
    images = [
        torch.rand(1, 24, 16, 3, generator=torch.Generator().manual_seed(seed))
        for seed in range(len(grid))
    ]
    sheet, frames = app.run(
        "GBX_W2WSheet", images=images, labels=labels, columns=[0], title=["test"]
    )
    assert torch.equal(frames, torch.cat(images)) and sheet.shape[0] == 1 and sheet.shape[-1] == 3
    sampled = app.run(
        "GBX_W2WSample",
        space=family.space,
        seed=1,
        count=3,
        components=100,
        spread=1.0,
        source="random",
        member_name="",
    )
    assert all("near member_0" in label for label in sampled[2])
    assert (
        app.run("GBX_W2WSheet", images=images[:3], labels=sampled[2], columns=[0], title=[""])[
            0
        ].shape[2]
        > 600
    )
    with pytest.raises(ValueError, match="different sizes"):
        app.run(
            "GBX_W2WSheet",
            images=[images[0], images[1][:, :8]],
            labels=["a", "b"],
            columns=[0],
            title=[""],
        )


def test_a_sheet_has_typed_labels_and_images_of_a_width(app, monkeypatch):
    sheet, titles = app.module("nodes.weights.contact_sheet"), []
    draw = sheet.draw_sheet

    def noting(figure, images, labels, **given):
        titles.append(labels)
        draw(figure, images, labels, **given)

    monkeypatch.setattr(sheet, "draw_sheet", noting)
    images = [torch.rand(2, 24, 16, 3)]
    for text, expected in (("before\nafter", ["before", "after"]), ("", ["1", "2"])):
        small, large = (
            app.run(
                "GBX_W2WSheet",
                images=images,
                columns=[0],
                title=[""],
                label_text=[text],
                image_width=[width],
            )[0]
            for width in (100, 400)
        )
        assert titles.pop() == titles.pop() == expected
        assert large.shape[2] - small.shape[2] == 300 * len(expected)
    with pytest.raises(ValueError, match="There are 2 images and 1 labels"):
        app.run("GBX_W2WSheet", images=images, columns=[0], title=[""], label_text=["one"])


def label(app, family, **changed):
    given = {"words": "brown skin / pale skin", "prompt": "portrait, WORD", "folder": "", **changed}
    wires = {name: given.pop(name) for name in ("images", "names") if name in given}
    single = {name: [value] for name, value in given.items()}
    return app.run("GBX_W2WLabelMembers", space=[family.space], **single, **wires)


def test_labels_from_images_of_members(family, app, tmp_path):
    """The table of CLIP's probabilities, by ComfyUI's own CLIP-G of SDXL and a small CLIP_VISION of
    random weights.
    """
    import reduced

    points, names, _ = app.run(
        "GBX_W2WSample",
        space=family.space,
        seed=2,
        count=3,
        components=100,
        spread=1.0,
        source="members",
        member_name="",
    )
    assert len(set(names)) == 3 and set(names) <= set(family.space.members)
    assert torch.equal(
        points[1].coefficients, family.space.coefficients[family.space.members.index(names[1])]
    )
    images = [
        torch.rand(2, 40, 40, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(3)
    ]
    seen, clip = reduced.clip_vision(tmp_path, 64), reduced.checkpoint("sdxl")[1]
    table, report = label(
        app, family, source="images", images=images, names=names, clip=clip, clip_vision=seen
    )
    with torch.inference_mode():
        texts = [
            clip.encode_from_tokens(clip.tokenize(f"portrait, {word} skin"), return_pooled=True)[1]
            for word in ("brown", "pale")
        ]
        embeds = seen.encode_image(images[1])["image_embeds"]
        cosines = torch.stack([torch.cosine_similarity(embeds, text).mean() for text in texts])
    found = app.module("nodes.weights.labels").parse(table, family.space)
    assert list(found) == ["brown skin"] and int(found["brown skin"].isfinite().sum()) == 3
    value = float(found["brown skin"][family.space.members.index(names[1])])
    assert value == pytest.approx(float((100 * cosines).softmax(0)[0]), abs=1e-3)
    assert "CLIP cosine" in report and "5 unknown" in report
    for broken, why in (
        ({"names": names[:2]}, "3 images and 2 names"),
        ({"names": ["stranger", *names[1:]]}, "'stranger' is not a member"),
        ({"prompt": "portrait"}, "no WORD that"),
        ({"prompt": "portrait of a SWORD"}, "no WORD that"),
        ({"clip_vision": None}, "no CLIP_VISION"),
    ):
        with pytest.raises(ValueError, match=why):
            label(
                app,
                family,
                **{
                    "source": "images",
                    "images": images,
                    "names": names,
                    "clip": clip,
                    "clip_vision": seen,
                    **broken,
                },
            )


def test_labels_from_names_and_metadata(family, app):
    table, _ = label(app, family, source="file_names", words="member 03")
    assert [line for line in table.splitlines() if line.endswith(",1")] == ["member_03,1"]
    path = family.folder / "tagged" / "member_04.safetensors"
    path.parent.mkdir(exist_ok=True)
    tags = json.dumps({"10_person": {"full beard": 4, "shaven": 1}})
    save_file(members.kohya(members.factors(4, layers=LAYERS)), path, {"ss_tag_frequency": tags})
    table, report = label(app, family, source="metadata", words="beard / shaven", folder="tagged")
    assert (
        "member_04,1" in table.splitlines() and "1 members with it, 0 without, 7 unknown" in report
    )
    for folder, why in (("people", "No file in 'people'"), ("", "There is no folder")):
        with pytest.raises(ValueError, match=why):
            label(app, family, source="metadata", folder=folder)


_DRAWN = {"seed": 3, "count": 4, "components": 1000, "spread": 1.0, "member_name": ""}


def test_the_recommended_source_composes_where_attributes_are_named(family, app):
    """Else it takes points near members; a person is composed or refused."""
    near = app.run("GBX_W2WSample", space=family.space, source="near_members", **_DRAWN)
    chosen = app.run("GBX_W2WSample", space=family.space, source="recommended", **_DRAWN)
    assert near[1] == chosen[1]
    for first, second in zip(near[0], chosen[0], strict=True):
        assert torch.equal(first.coefficients, second.coefficients)
    shipped = app.run("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")[0]
    composed = app.run("GBX_W2WSample", space=shipped, source="composed", **_DRAWN)
    chosen = app.run("GBX_W2WSample", space=shipped, source="recommended", **_DRAWN)
    for first, second in zip(composed[0], chosen[0], strict=True):
        assert torch.equal(first.coefficients, second.coefficients)
    person = "black skin, afro, no glasses"
    _, names, labels = app.run(
        "GBX_W2WSample", space=shipped, source="recommended", person=person, **_DRAWN
    )
    assert names == [f"composed 3.{number}" for number in range(4)]
    for label in labels:
        _, described, near_members = label.splitlines()
        assert set(person.split(", ")) < set(described.split(", "))
        assert near_members.startswith("near person_")


@pytest.mark.parametrize(
    ("source", "person", "sentence"),
    [
        ("random", "afro", "source is random: set source to recommended or composed"),
        ("recommended", "afro", "does not tell the values of its members' attributes"),
        ("composed", "", "does not tell the values of its members' attributes"),
    ],
)
def test_a_person_that_cannot_be_composed_is_one_sentence(family, app, source, person, sentence):
    with pytest.raises(ValueError, match=sentence):
        app.run("GBX_W2WSample", space=family.space, source=source, person=person, **_DRAWN)
