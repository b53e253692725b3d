"""LoRA files that are written without a MODEL: ComfyUI's Load LoRA finds every layer, whatever a
trainer called it.
"""

import pytest
import torch
from glassbox.nodes.common import lora_keys
from glassbox.nodes.common.lora_reader import Factors
from glassbox.nodes.weights import lora_writer

from studies.models import networks

#: Input widths of the real networks, which tell a family from others with the same names.
WIDTHS = {
    "Flux": 3072,
    "SD3": 1536,
    "PixArtAlpha": 1152,
    "ZImage": 3840,
    "Flux2": 6144,
    "LTXV": 2048,
}
NETWORKS = (*WIDTHS, "Krea2", "AuraFlow", "HunyuanDiT", "WAN21_T2V", "QwenImage", "Anima")


def loaded_names(model) -> dict:
    """ComfyUI's table: the weight by each name of a layer with a matrix."""
    import comfy.lora

    weights = model.model.state_dict()
    table = comfy.lora.model_lora_keys_unet(model.model, {})
    keys = {name: key if isinstance(key, str) else key[0] for name, key in table.items()}
    return {
        name: key
        for name, key in keys.items()
        if key in weights and weights[key].ndim == 2 and "attn" in name.replace("attention", "attn")
    }


def schemes(table) -> dict[str, list[str]]:
    """What trainers make of a network's own names, and of diffusers'."""
    own = [
        name.removeprefix("diffusion_model.")
        for name in table
        if name.startswith("diffusion_model.")
    ]
    of_diffusers = [
        name.removeprefix("transformer.")
        for name in table
        if name.startswith("transformer.") and ".to_out.0" not in name
    ]
    made = {"as in ComfyUI": [name for name in table if "." in name]}
    for title, names in (("own", own), ("diffusers", of_diffusers)):
        made[f"{title}, kohya"] = [f"lora_unet_{name.replace('.', '_')}" for name in names]
        made[f"{title}, kohya twice"] = [
            f"lora_unet_unet_{name.replace('.', '_')}" for name in names
        ]
        made[f"{title}, peft"] = [f"base_model.model.{name}" for name in names]
        made[f"{title}, transformer"] = [f"transformer.{name}" for name in names]
    return made


@pytest.mark.parametrize("name", NETWORKS)
def test_load_lora_knows_every_name_that_is_written(app, name):
    configuration = networks.configurations()[name]
    if not networks.is_loaded_by_host(configuration):
        pytest.skip("This ComfyUI has no such network.")
    with torch.inference_mode():
        table = loaded_names(networks.model(configuration))
    assert table
    width = WIDTHS.get(name, 64)
    for scheme, stems in schemes(table).items():
        layers = {}
        known = {}
        for stem in stems:
            meant = lora_keys.parse(f"{stem}.alpha")
            layers[meant.layer] = Factors(torch.ones(2, width), torch.ones(width, 2))
            known[meant.layer] = stem
        written = lora_writer.file_stems(layers, known)
        lost = {known[layer]: written[layer] for layer in layers if written.get(layer) not in table}
        assert not lost, (scheme, list(lost.items())[:3])


#: Three layers of Wan as diffusers names them (SimpleTuner's files), in forms that ComfyUI does not
#: know, and by ComfyUI's own names.
WAN = {
    "blocks.0.attn1.to_q": "blocks.0.self_attn.q",
    "blocks.0.attn2.to_out.0": "blocks.0.cross_attn.o",
    "blocks.1.ffn.net.0.proj": "blocks.1.ffn.0",
}


@pytest.mark.parametrize("form", ["lycoris_{}", "lora_unet_{}", "transformer.{}"])
def test_wan_in_diffusers_names(app, form):
    """They are found in the MODEL, and an export is one that Load LoRA reads."""
    import comfy.lora

    targets = app.module("nodes.host.lora_targets")
    configuration = networks.configurations()["WAN21_T2V"]
    with torch.inference_mode():
        model = networks.model(configuration)
    layers = {}
    known = {}
    for name, own in WAN.items():
        stem = form.format(name if "." in form else name.replace(".", "_"))
        meant = lora_keys.parse(f"{stem}.alpha")
        assert meant.layer == own
        shape = model.model.state_dict()[f"diffusion_model.{own}.weight"].shape
        layers[own] = Factors(torch.ones(2, shape[1]), torch.ones(shape[0], 2))
        known[own] = meant.stem
    fit = targets.fit(model, targets.sizes_of(layers), known)
    assert not fit.missing
    table = comfy.lora.model_lora_keys_unet(model.model, {})
    assert {table[name] for name in lora_writer.file_stems(layers, known).values()} == {
        f"diffusion_model.{own}.weight" for own in WAN.values()
    }
