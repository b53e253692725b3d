"""What the network map draws: after a run the very MODEL on the wire, before it the network of a
file's header.
"""

import json
import struct

import pytest
import reduced
import tapping
import torch


def _payload(app, node_id: str, **inputs) -> dict:
    """What a node hands to the canvas for its map."""
    with torch.inference_mode():
        (outline,) = app.classes[node_id].EXECUTE_NORMALIZED(**inputs).ui["glassbox_network"]
    return json.loads(json.dumps(outline))


def _drawn(app, network) -> dict:
    return app.module("nodes.activations.catalog_table").outline(
        app.module("nodes.activations.catalog_unet").catalog(network)
    )


@pytest.mark.parametrize("architecture", reduced.ARCHITECTURES)
def test_after_a_run_it_is_the_model_on_the_wire(app, architecture):
    """Each box stands for what a tap of this MODEL reads, with its channels and size; a clone of it
    is drawn alike.
    """
    world = tapping.World(app, *reduced.checkpoint(architecture))
    given = {"preset": "recommended", "ids": ""}
    payload = _payload(
        app, "GBX_ActivationCatalog", model=world.model, width=128, height=128, **given
    )
    clone = _payload(
        app, "GBX_ActivationCatalog", model=world.model.clone(), width=64, height=64, **given
    )
    assert (
        payload == clone == json.loads(json.dumps(_drawn(app, world.model.model.diffusion_model)))
    )
    tapped = world.tap("*", latent=world.latent(1), noise_unit="sigma", level=0.3)
    assert [id_ for id_, *_ in payload["activations"]] == list(tapped.tensors)
    for id_, channels, scale, _ in payload["activations"]:
        side = 16 // scale
        assert channels is None or tapped.tensors[id_].shape == (1, channels, side, side), (
            id_
        )  # maps have no channels
    members = [number for group in payload["groups"] for number in group["members"]]
    assert sorted(members) == [*range(len(tapped.tensors))]
    assert payload["presets"]["recommended"]
    assert {group["place"].split("-")[0] for group in payload["groups"]} <= {
        "",
        "down",
        "mid",
        "up",
        "vit",
    }


def _header_only(path, tensors: dict) -> None:
    """A .safetensors file of these tensors in half precision whose numbers take no room on the
    disk.
    """
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


@pytest.mark.parametrize(
    ("name", "folder", "prefix"),
    [
        ("sd15", "checkpoints", "model.diffusion_model."),
        ("sdxl", "checkpoints", "model.diffusion_model."),
        ("flux", "checkpoints", "model.diffusion_model."),
        ("flux", "diffusion_models", ""),
    ],
)
def test_before_a_run_a_files_header_tells_the_network(
    app, monkeypatch, tmp_path, name, folder, prefix
):
    """Headers of the real size: every name and shape of the architecture, without its numbers."""
    import folder_paths

    blueprints = app.module("nodes.activations.meta_networks_comfy")
    if name == "flux":
        network = reduced.flux_without_weights()
    else:
        network = blueprints.network("architecture", name)
    file = tmp_path / f"{name}.safetensors"
    _header_only(file, {prefix + key: tensor for key, tensor in network.state_dict().items()})
    monkeypatch.setattr(
        folder_paths, "get_full_path", lambda kind, wanted: str(file) if kind == folder else None
    )
    assert _drawn(app, blueprints.network(folder, file.name)) == _drawn(app, network)
