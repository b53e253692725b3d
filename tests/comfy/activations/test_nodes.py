"""The other nodes of the family: catalog, selection, views, files."""

import pytest
import torch
from tapping import World
from torch.nn import functional as F


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def test_activations_are_saved_and_loaded(demo):
    tapped = demo.tap("up-level1-repeat0-*")
    (file,) = demo.app.run(
        "GBX_SaveActivations", activations=tapped, filename_prefix="glassbox/features"
    )
    assert file == "glassbox/features_00001_.safetensors"
    loaded, report = demo.app.run("GBX_LoadActivations", file=file)
    assert report == tapped.report() and loaded.settings == tapped.settings
    assert all(torch.equal(loaded.tensors[id_], value) for id_, value in tapped.tensors.items())


@pytest.mark.parametrize(
    ("file", "reason"), [("../../secret", "leads out"), ("nothing", "There is no file")]
)
def test_only_files_of_the_output_folder_are_loaded(demo, file, reason):
    with pytest.raises(ValueError, match=reason):
        demo.app.run("GBX_LoadActivations", file=file)


def test_the_catalog_lists_sizes_and_selection(demo):
    figure, table, ids = demo.app.run(
        "GBX_ActivationCatalog",
        model=demo.model,
        preset="general_filter",
        ids="",
        width=128,
        height=64,
    )
    assert figure.ndim == 4 and figure.shape[-1] == 3
    lines = [line.rstrip() for line in table.splitlines()]
    assert len(lines) == 1 + 187 and "not in the paper" in lines[0]
    assert "unet-in  (network)  24x8x16" in lines
    chosen = [line.split("  ")[0] for line in lines if line.endswith("  selected")]
    assert ids.splitlines() == chosen and "up-level2-repeat2-vit-block0-self-k" in chosen


def test_some_activations_and_some_images(demo):
    tapped = demo.tap("up-level1-repeat0-*", latent=demo.latent(3))
    left, report = demo.app.run(
        "GBX_SelectActivations", activations=tapped, ids="*-q", image_indices="1-2", rows="both"
    )
    assert list(left.tensors) == [
        f"up-level1-repeat0-vit-block0-{part}-q" for part in ("self", "cross")
    ]
    assert [row.image for row in left.rows] == [1, 2] and report.endswith("float32")
    for id_, value in left.tensors.items():
        assert torch.equal(value, tapped.tensors[id_][1:])
    with pytest.raises(ValueError, match="No row is left: there are images 0 to 2"):
        demo.app.run(
            "GBX_SelectActivations", activations=tapped, ids="*", image_indices="7", rows="both"
        )


@pytest.mark.parametrize("mode", ["pca_rgb", "channel", "contact_sheet"])
@pytest.mark.parametrize("joint_fit", [True, False])
def test_modes_of_the_visualizer(demo, mode, joint_fit):
    tapped = demo.tap("up-level1-repeat0-*-q", latent=demo.latent(2, 64, 128))
    given = {"activations": tapped, "mode": mode, "joint_fit": joint_fit, "channel": 1, "size": 64}
    (shown,) = demo.app.run("GBX_ActivationPicture", **given)
    assert shown.shape[-1] == 3 and shown.amin() >= 0 and shown.amax() <= 1
    if mode != "contact_sheet":
        assert shown.shape == (2, 32, 64, 3)


def test_self_attention_of_a_point(demo):
    """In a wide image, in which x and y cannot stand for one another."""
    id_, image = "up-level2-repeat0-vit-block0-self-map", torch.rand(2, 128, 192, 3)
    maps = demo.tap(id_, latent=demo.latent(2, 128, 192))
    given = {
        "activations": maps,
        "image": image,
        "image_index": 1,
        "opacity": 0.5,
        "points": "132, 36",
    }
    attention = (
        maps.tensors[id_][1][:, 4 * 24 + 16].float().unflatten(1, (16, 24))
    )  # positions of 8 pixels a side
    figure, heads = demo.app.run("GBX_ActivationSimilarity", **given, per_head=True)
    assert len(figure) == len(heads) == len(attention) > 1
    for shown, values in (
        (heads, attention),
        (demo.app.run("GBX_ActivationSimilarity", **given)[1], attention.mean(0)[None]),
    ):
        scaled = values / values.amax((1, 2), keepdim=True)
        assert torch.allclose(
            shown, F.interpolate(scaled[:, None], size=(128, 192), mode="bilinear")[:, 0], atol=1e-5
        )


def test_similarity_and_correspondence_find_the_point_itself(demo):
    image = torch.rand(2, 128, 128, 3, generator=torch.Generator().manual_seed(5))
    mask = torch.zeros(1, 128, 128)
    mask[:, 32:64, 64:96] = 1
    tapped = demo.tap("up-level2-repeat0-vit-block0-self-k", latent=demo.latent(2))
    where = {"activations": tapped, "image": image, "image_index": 1, "opacity": 0.5}
    heat, similarity = demo.app.run("GBX_ActivationSimilarity", **where, points="68, 36")
    assert heat.shape == (2, 512, 512, 3) and similarity.shape == (2, 128, 128)
    assert similarity[1].argmax().item() in (
        36 * 128 + 68,
        35 * 128 + 67,
        36 * 128 + 67,
        35 * 128 + 68,
    )
    by_mask = demo.app.run("GBX_ActivationSimilarity", **where, points="", mask=mask)[1]
    assert by_mask[1][mask[0] > 0].mean() > by_mask[1][mask[0] == 0].mean()
    drawn, found, carried = demo.app.run(
        "GBX_ActivationCorrespondence",
        source=tapped,
        source_image=image,
        target=tapped,
        target_image=image,
        image_index=1,
        points="68, 36\n20, 100",
        resolution=128,
        mutual=True,
        source_mask=mask,
    )
    assert drawn.shape == (2, 512, 1030, 3)
    assert found.split("\n\n")[1] == "68, 36\n20, 100"
    assert carried.shape == (2, 128, 128) and (carried[1].round() == mask[0]).float().mean() > 0.97


def test_views_say_what_does_not_fit(demo):
    image = torch.zeros(1, 64, 64, 3)
    one, other = demo.tap("up-level1-*-res-out"), demo.tap("up-level2-*-res-out")
    views = {"points": "3, 3", "image_index": 0}
    with pytest.raises(ValueError, match="Connect the images that were tapped"):
        demo.app.run("GBX_ActivationSimilarity", activations=one, image=image, opacity=0.5, **views)
    with pytest.raises(ValueError, match="There is no image 3"):
        demo.app.run(
            "GBX_ActivationSimilarity",
            activations=one,
            image=image,
            opacity=0.5,
            points="3, 3",
            image_index=3,
        )
    with pytest.raises(ValueError, match="Source and target hold different activations"):
        demo.app.run(
            "GBX_ActivationCorrespondence",
            source=one,
            source_image=image,
            target=other,
            target_image=image,
            resolution=64,
            mutual=False,
            **views,
        )
