"""Spaces inside a real ComfyUI: built, saved, loaded, reported, and the one that the pack ships."""

import dataclasses
import threading

import members
import newer
import pytest
import torch
import weight_nodes
from weight_nodes import COUNT, LAYERS


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


def test_build_names_what_it_made(family):
    space, report = family.build(filename="named")
    assert space.members[0] == "member_00" and space.components == COUNT - 1
    assert "8 members" in report and "components keep 100.0 % of a member" in report


def test_spaces_are_saved_and_loaded_with_their_directions(family, app):
    saved, report = app.run(
        "GBX_W2WSaveSpace", space=family.directed[0], filename="with directions", storage="int8"
    )
    loaded, text = app.run("GBX_W2WLoadSpace", space_name="with directions.safetensors")
    assert "storage error" in report and "Directions: beard, glasses" in text
    assert torch.equal(
        loaded.directions["beard"].vector, family.directed[0].directions["beard"].vector
    )
    assert torch.equal(loaded.basis, saved.basis) and loaded.basis.dtype == torch.int8
    for name in ("../out", "", "a/../b", "a//b", "/a", "a/", ".hidden", "a/.hidden"):
        with pytest.raises(ValueError, match="is not a name for a file"):
            app.run("GBX_W2WSaveSpace", space=family.directed[0], filename=name, storage="int8")


def test_the_loader_lists_and_refuses(family, app, monkeypatch, tmp_path):
    import folder_paths

    folders = app.module("nodes.host.folders")
    suffixes = folder_paths.folder_names_and_paths["w2w"][1]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "w2w", ([str(tmp_path)], suffixes))
    family.build(filename="listed")
    folder_paths.filename_list_cache.clear()  # a list younger than half a second is not read again
    assert "listed.safetensors" in folders.space_names()
    with pytest.raises(ValueError, match=r"space_name is 'x': choose one of .*listed\.safetensors"):
        app.run("GBX_W2WLoadSpace", space_name="x")


def test_members_from_wires_and_folders_that_lead_out(family):
    wires = [members.kohya(members.factors(60 + seed, layers=LAYERS)) for seed in range(3)]
    space, _ = family.build(filename="wires", lora_1=wires[:2], lora_2=[wires[2]])
    assert len(space.members) == COUNT + 3 and "wire 3" in space.members
    only, _ = family.build(filename="only wires", folder="", lora_1=wires)
    assert len(only.members) == 3
    for folder in ("../..", "nowhere"):
        with pytest.raises(ValueError, match="There is no folder"):
            family.build(folder=folder)
    with pytest.raises(ValueError, match="give a folder inside models/loras, or connect LoRAs"):
        family.build(folder="")


def test_the_report_of_a_space_and_a_point(family, app):
    spectrum, coefficients, words, table = app.run(
        "GBX_W2WReport", space=family.directed[0], point=family.point
    )
    for figure in (spectrum, coefficients):
        assert (
            figure.shape[0] == 1
            and figure.shape[-1] == 3
            and figure.min() >= 0
            and figure.max() <= 1
        )
    assert "Nearest members" in words and "Directions: beard" in words
    assert table.startswith("member") and len(table.splitlines()) == COUNT + 1
    assert len(app.run("GBX_W2WReport", space=family.directed[0])) == 4


def test_a_lora_of_the_core_trainer_becomes_a_member(family, app):
    """Core's trainer writes biases and norms too: they are dropped and their fraction is
    reported.
    """
    latents = [{"samples": torch.randn(1, 24, 16, 16)} for _ in range(2)]
    given = {
        "batch_size": 1,
        "grad_accumulation_steps": 1,
        "steps": 1,
        "learning_rate": 1e-3,
        "rank": 2,
        "optimizer": "AdamW",
        "loss_function": "MSE",
        "seed": 0,
        "training_dtype": "fp32",
        "lora_dtype": "fp32",
        "algorithm": "LoRA",
        "gradient_checkpointing": False,
        "existing_lora": "[None]",
    }
    given |= {"model": family.model, "latents": latents, "positive": [family.positive]}
    trained = [newer.train_lora(app, **given)[0] for _ in range(2)]
    for lora in trained:
        for name, value in lora.items():
            value.data += 0.01 * torch.randn_like(value) if "alpha" not in name else 0
    space, report = family.build(filename="trained", folder="", lora_1=trained, rank=2)
    assert len(space.members) == 2 and "Left out on average: biases and norms" in report


def test_the_space_that_the_pack_ships_fits_its_model(family, app):
    """Every layer of it is in the demo model, it is small, and its directions can be fitted."""
    folders = app.module("nodes.host.folders")
    shipped = [name for name in folders.space_names() if name.startswith("avatars-v2")]
    assert shipped == ["avatars-v2-w2w.safetensors"]
    assert folders.space_path(shipped[0]).stat().st_size <= 6_000_000
    space, _ = app.run("GBX_W2WLoadSpace", space_name=shipped[0])
    fit = app.module("nodes.host.lora_targets").fit(
        family.model, space.layout.matrix_sizes, space.stems
    )
    assert len(fit.targets) == len(space.layout.slots) == 64
    directed, report = app.run(
        "GBX_W2WFitDirections",
        space=space,
        labels="",
        method="most_reliable",
        components=1000,
        attributes="",
    )
    assert {"beard", "dark skin", "round glasses"} <= set(
        directed.directions
    ) and "conditional_difference" in report


def test_a_point_joins_as_a_member(family, app):
    """Nothing else changes: mean, axes and the other members; its labels are unknown, and its model
    is its own.
    """
    labels = "\n".join(
        ["member,tall", *(f"{name},{row % 2}" for row, name in enumerate(family.space.members))]
    )
    space, _ = app.run(
        "GBX_W2WFitDirections",
        space=family.space,
        labels=labels,
        method="mean_difference",
        components=4,
        attributes="",
    )
    point = family.point.with_coefficients(
        0.5 * space.coefficients[0] + 0.25 * space.coefficients[1], "inverted"
    )
    norms = {"norms": [4.0] * len(space.members), "common_norm": 2.0}
    labels = {"tall": torch.ones(len(space.members))}
    space = dataclasses.replace(space, labels=labels, about={**space.about, **norms})
    given = {"space": space, "filename": "joined", "storage": "float32"}
    joined, report = app.run("GBX_W2WSaveSpace", **given, new_member=point, member_name=" Ada ")
    assert joined.members == (*space.members, "Ada") and f"{len(joined.members)} members" in report
    assert torch.equal(joined.basis, space.basis) and torch.equal(joined.mean, space.mean)
    assert torch.equal(
        joined.coefficients[:-1], space.coefficients
    ) and joined.directions.keys() == {"tall"}
    torch.testing.assert_close(
        joined.rebuild(joined.coefficients[-1]), point.flat, rtol=1e-5, atol=1e-6
    )
    assert joined.strengths.tolist() == [0.5] * len(space.members) + [1.0]
    assert joined.labels["tall"][-1].isnan() and (joined.labels["tall"][:-1] == 1).all()
    for name, member, sentence in (("m0", space.members[0], "a member of"), ("m1", "", "no name")):
        with pytest.raises(ValueError, match=sentence):
            app.run(
                "GBX_W2WSaveSpace",
                **{**given, "filename": name},
                new_member=point,
                member_name=member,
            )


def test_a_report_stops_between_its_figures(family, app, monkeypatch):
    from comfy import model_management

    report, drawn = app.module("nodes.weights.space_report"), []

    def stopped(figure, space):
        figure.add_subplot().plot([0, 1])
        model_management.interrupt_current_processing()

    monkeypatch.setattr(report, "draw_spectrum", stopped)
    monkeypatch.setattr(report, "draw_point", lambda *_: drawn.append(1))
    with pytest.raises(model_management.InterruptProcessingException):
        app.run("GBX_W2WReport", space=family.space)
    assert not drawn


def test_a_sheet_stops_while_it_is_drawn(app, monkeypatch):
    """256 panels take matplotlib many seconds."""
    from comfy import model_management

    sheet, stopped = app.module("nodes.weights.contact_sheet"), threading.Event()

    def draw(*_, **__):
        model_management.interrupt_current_processing()
        assert stopped.wait(60)

    monkeypatch.setattr(sheet, "draw_sheet", draw)
    try:
        with pytest.raises(model_management.InterruptProcessingException):
            app.run(
                "GBX_W2WSheet",
                images=[torch.zeros(1, 8, 8, 3)],
                labels=["a"],
                columns=[0],
                title=[""],
            )
    finally:
        stopped.set()
