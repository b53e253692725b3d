"""The activations family inside a real ComfyUI: names, values, noise levels, recording."""

import csv

import pytest
import torch

UNETS = {
    "sd15": {
        "image_size": 32,
        "in_channels": 4,
        "out_channels": 4,
        "model_channels": 320,
        "num_res_blocks": [2, 2, 2, 2],
        "channel_mult": (1, 2, 4, 4),
        "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
        "transformer_depth_middle": 1,
        "transformer_depth_output": [1] * 9 + [0] * 3,
        "num_heads": 8,
        "num_head_channels": -1,
        "context_dim": 768,
        "use_spatial_transformer": True,
        "use_linear_in_transformer": False,
        "legacy": False,
    },
    "sdxl": {
        "image_size": 32,
        "in_channels": 4,
        "out_channels": 4,
        "model_channels": 320,
        "num_res_blocks": [2, 2, 2],
        "channel_mult": (1, 2, 4),
        "transformer_depth": [0, 0, 2, 2, 10, 10],
        "transformer_depth_middle": 10,
        "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
        "num_heads": -1,
        "num_head_channels": 64,
        "context_dim": 2048,
        "use_spatial_transformer": True,
        "use_linear_in_transformer": True,
        "legacy": False,
        "num_classes": "sequential",
        "adm_in_channels": 2816,
    },
}
SIDES = {"sd15": 64, "sdxl": 128}


def unet(name, device="meta", **changes):
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    config = {
        key: list(value) if isinstance(value, list) else value for key, value in UNETS[name].items()
    }
    return UNetModel(**{**config, **changes}, device=device)


@pytest.fixture(scope="module")
def family(app):
    """The modules of the family by name, as ComfyUI has loaded them."""
    return lambda name: app.module(f"nodes.activations.{name}")


@pytest.fixture(scope="module")
def catalogs(family):
    return {name: family("catalog_unet").catalog(unet(name)) for name in UNETS}


@pytest.fixture(scope="module")
def official():
    """Every ID in the official order with ComfyUI's module, kind, channels and side."""
    from pathlib import Path

    folder = Path(__file__).resolve().parents[2] / "data" / "activations"
    return {
        name: list(csv.DictReader((folder / f"ids_{name}.csv").open(encoding="utf-8")))
        for name in UNETS
    }


@pytest.mark.parametrize("name", UNETS)
def test_the_catalog_is_the_official_one(catalogs, official, name):
    """197 and 612 IDs, in the official order, with ComfyUI's modules and the real sizes.

    Behind them come two averages of attention maps: the official code's own and DAAM's.
    """
    assert [spec.id for spec in catalogs[name][-2:]] == ["attn", "attn-mean"]
    found = [(spec.id, spec.module, spec.kind) for spec in catalogs[name][:-2]]
    expected = [(row["id"], row["module"], row["kind"]) for row in official[name]]
    assert found == expected
    for spec, row in zip(catalogs[name][:-2], official[name], strict=True):
        if spec.kind != "map":
            side = SIDES[name] // spec.scale
            assert f"{spec.channels}x{side}x{side}" == row["shape"], spec.id


def test_the_architecture_follows_from_the_ids(family, catalogs):
    published = family("paper_tables")
    assert [published.architecture(catalogs[name]) for name in UNETS] == ["sd15", "sdxl"]
    assert published.architecture(catalogs["sd15"][:-3]) is None


def paper_cut(name, id_):
    """Section 5.1's rules as the tables apply them, independent of the data that the pack ships."""
    if not id_.startswith("up-"):
        return False
    level, repeat = int(id_[8]), int(id_.split("repeat")[1][0]) if "repeat" in id_ else None
    part = id_.split("-", 3)[3] if repeat is not None else id_.split("-", 2)[2]
    smooth = part in ("res-out", "vit-out") or (
        part.endswith(("cross-q", "out")) and "block" in part
    )
    if name == "sdxl":
        keys = level == 1 and repeat == 2 and part.endswith("self-k")
        return (level < 2 and smooth) or keys or (level == 0 and part == "upsampler-out")
    local = part.endswith(("self-q", "self-k"))
    late = (level == 2 and repeat == 2) or level == 3
    return (
        (level in (1, 2) and smooth) or (late and local) or (level == 2 and part == "upsampler-out")
    )


@pytest.mark.parametrize(("name", "pool", "kept"), [("sd15", 164, 33), ("sdxl", 279, 63)])
def test_the_published_filter_cuts_the_published_pool(family, catalogs, name, pool, kept):
    selection = family("select_ids")
    pooled = [spec.id for spec in selection.select(catalogs[name], selection.Preset.PAPER_POOL)]
    filtered = [spec.id for spec in selection.select(catalogs[name], selection.Preset.PAPER_FILTER)]
    assert (len(pooled), len(filtered)) == (pool, kept)
    assert [id_ for id_ in pooled if paper_cut(name, id_)] == filtered


@pytest.mark.parametrize(
    ("name", "more", "fewer"),
    [
        ("sd15", [], ["up-level2-upsampler-out"]),
        (
            "sdxl",
            [f"up-level1-repeat2-vit-block{block}-self-q" for block in (0, 1)],
            ["up-level0-upsampler-out"],
        ),
    ],
)
def test_how_far_the_general_filter_is_from_the_papers(family, catalogs, name, more, fewer):
    selection, published = family("select_ids"), family("paper_tables")
    pool = published.flagged(name, "pool")
    general = [id_ for id_ in selection.general_filter(catalogs[name]) if id_ in pool]
    paper = published.flagged(name, "filter")
    assert sorted(set(general) - set(paper)) == more
    assert sorted(set(paper) - set(general)) == fewer


@pytest.mark.parametrize(
    ("preset", "name", "channels"),
    [
        ("ours_v1_5", "sd15", 3520),
        ("legacy_v1_5", "sd15", 3520),
        ("ours_xl", "sdxl", 3840),
        ("legacy_xl", "sdxl", 2240),
        ("ours_xl_t_sd15", "sd15", 3034),
        ("ours_xl_t_playground_v2", "sdxl", 1280),
        ("ours_xl_t_segmentation_sdxl", "sdxl", 4480),
        ("ours_xl_t_segmentation_playground_v2", "sdxl", 2560),
    ],
)
def test_the_channels_of_the_published_sets(family, catalogs, preset, name, channels):
    """Channel sums of appendix C; the order is the network's, whatever the list's."""
    found = family("select_ids").select(catalogs[name], preset)
    tokens = 2 * 77  # of the attention feature: what a text has, in two sizes
    assert sum(tokens if spec.id == "attn" else spec.channels for spec in found) == channels
    if preset == "ours_xl":
        assert [spec.id.rsplit("-", 2)[-2:] for spec in found] == [
            ["block5", "out"],
            ["block7", "out"],
            ["cross", "q"],
            ["block0", "out"],
        ]


def test_other_networks_are_refused(family):
    with pytest.raises(ValueError, match="Linear is not supported"):
        family("catalog_unet").catalog(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("linear", [False, True])
@torch.inference_mode()
def test_the_update_of_a_transformer_is_its_output_less_its_input(family, app, linear):
    """With a linear projection as in SDXL, whose outputs are tokens, and with a convolution as in
    SD1.5.
    """
    small = {"model_channels": 32, "context_dim": 16, "num_head_channels": 8, "adm_in_channels": 8}
    small |= {"channel_mult": (1, 2), "num_res_blocks": [1, 1], "transformer_depth": [1, 1]}
    small |= {
        "transformer_depth_middle": 1,
        "transformer_depth_output": [1] * 4,
        "use_linear_in_transformer": linear,
    }
    network = unet("sdxl", device="cpu", **small).eval()
    for parameter in network.parameters():
        parameter.normal_(0, 0.05)
    catalog = family("catalog_unet")
    specs = {spec.id: spec for spec in catalog.catalog(network)}
    output, entering = specs["down-level1-repeat0-vit-out"], specs["down-level1-repeat0-res-out"]
    update = catalog.transformer_update(output, network)
    assert update.module == f"{output.module}.proj_out" and update.kind == (
        "tokens" if linear else "spatial"
    )
    from dataclasses import replace

    wanted = [output, entering, replace(update, id="update")]
    tap_module = family("tap")
    about = app.module("nodes.common.network_call")
    call = about.Call(
        network=network,
        parts=(about.Part(role="positive", rows=slice(0, 2), area=about.WHOLE),),
        rows=2,
        sigma=1.0,
        schedule=(),
    )
    tap = tap_module.CallTap(wanted, tap_module.TapSettings(dtype=torch.float32), call)
    with app.module("nodes.host.hooks").forward_hooks(network, tap.receivers()):
        network(
            torch.randn(2, 4, 8, 12),
            torch.tensor([5.0, 5.0]),
            torch.randn(2, 3, 16),
            torch.randn(2, 8),
        )
    found = tap.tensors[True]
    expected = found[output.id] - found[entering.id]
    assert (
        found["update"] - expected
    ).abs().max() < 1e-5 * expected.abs().max()  # rounding of the sum
