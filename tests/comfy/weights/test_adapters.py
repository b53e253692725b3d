"""Adapters of every kind as members of a space on weight updates, inside a real ComfyUI."""

import members
import pytest
import torch
import weight_nodes
from safetensors.torch import save_file
from weight_nodes import LAYERS

LINEAR = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
_UPDATES = {"form": "weight_updates", "rank": 0, "energy": 1.0, "folder": ""}


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


def draw(seed, *shape):
    return 0.1 * torch.randn(*shape, generator=members.generator(seed))


def base_weight(family, app, layer):
    """As the patcher has it: in the network a LoRA of another test may still lie on it."""
    canonical = app.module("nodes.common.lora_keys").canonical
    found = family.model.get_key_patches("diffusion_model.")
    return next(
        value.double()
        for name, ((value, _), *_) in found.items()
        if canonical(name.removesuffix(".weight")) == layer and value.ndim > 1
    )


def loha(stem):
    parts = {
        f"hada_w{i}_{side}": draw(i + 10 * (side == "b"), *shape)
        for i in (1, 2)
        for side, shape in (("a", (64, 3)), ("b", (3, 64)))
    }
    update = (parts["hada_w1_a"].double() @ parts["hada_w1_b"].double()) * (
        parts["hada_w2_a"].double() @ parts["hada_w2_b"].double()
    )
    return {f"{stem}.{name}": value for name, value in parts.items()} | {
        f"{stem}.alpha": torch.tensor(6.0)
    }, 2 * update


def lokr(stem):
    first, a, b = draw(1, 4, 4), draw(2, 16, 2), draw(3, 2, 16)
    tensors = {f"{stem}.lokr_w1": first, f"{stem}.lokr_w2_a": a, f"{stem}.lokr_w2_b": b}
    return {**tensors, f"{stem}.alpha": torch.tensor(2.0)}, torch.kron(
        first.double(), a.double() @ b.double()
    )


def full(stem):
    update = draw(5, 64, 64)
    return {f"{stem}.diff": update}, update.double()


def dora(stem, weight):
    """ComfyUI's (and LyCORIS') form with the magnitude on the output side: m (W + dW) / |W| by
    row.
    """
    up, down, scale = draw(6, 64, 2), draw(7, 2, 64), 1 + draw(8, 64, 1).abs()
    tensors = {
        f"{stem}.lora_up.weight": up,
        f"{stem}.lora_down.weight": down,
        f"{stem}.dora_scale": scale,
    }
    moved = weight + up.double() @ down.double()
    norm = weight.norm(dim=1, keepdim=True) + torch.finfo(torch.float32).eps
    return {**tensors, f"{stem}.alpha": torch.tensor(2.0)}, moved * scale.double() / norm - weight


def oft(stem, weight):
    """(R - 1) W by blocks of rows, R the Cayley transform of skew matrices."""
    blocks = draw(9, 4, 16, 16)
    q, one = (blocks - blocks.transpose(1, 2)).double(), torch.eye(16, dtype=torch.float64)
    turn = (one + q) @ torch.linalg.inv(one - q)
    rows = torch.einsum("knm,kni->kmi", turn - one, weight.view(4, 16, -1))
    return {f"{stem}.oft_blocks": blocks}, rows.reshape(64, -1)


@pytest.mark.parametrize("kind", ["LoHa", "LoKr", "full difference", "DoRA", "OFT"])
def test_members_of_every_kind(family, app, kind):
    """The member's update against its formula in float64 (relative 1e-4), beside plain LoRAs."""
    weight = base_weight(family, app, LINEAR)
    stem = f"lora_unet_{LINEAR.replace('.', '_')}"
    make = {"LoHa": loha, "LoKr": lokr, "full difference": full}.get(kind)
    tensors, wanted = make(stem) if make else {"DoRA": dora, "OFT": oft}[kind](stem, weight)
    plain = [members.kohya(members.factors(70 + seed, layers=LAYERS)) for seed in range(2)]
    given = {**_UPDATES, "filename": f"kind {kind}", "lora_1": [*plain, tensors]}
    space, _ = family.build(**given, model=family.model)
    assert len(space.members) == 3
    point = family.draw(space, source="member", member_name="wire 3")[0]
    found = torch.mm(*point.layers()[LINEAR].matrices(torch.float64))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * float(wanted.norm()))
    if kind in ("DoRA", "OFT"):
        _, report = family.build(**{**given, "filename": "no base", "energy": 0.95})
        assert "Skipped: wire 3" in report and "needs the base model" in report


def test_the_point_of_a_loha_is_what_comfyui_applies(family, app):
    """Latents with W2W Apply and with the file in ComfyUI's own loader agree to 2e-3 of latents of
    1.
    """
    tensors, _ = loha(f"lora_unet_{LINEAR.replace('.', '_')}")
    plain = members.kohya(members.factors(70, layers=LAYERS))
    space, _ = family.build(**_UPDATES, filename="loha", lora_1=[plain, tensors])
    point = family.draw(space, source="member", member_name="wire 2")[0]
    (loaded,) = app.run("LoraModelLoader", model=family.model, lora=tensors, strength_model=1.0)
    assert (family.sample(family.apply(point)) - family.sample(loaded)).abs().max() < 2e-3


def test_text_encoder_layers_reach_the_clip(family, app):
    """The demo CLIP has no layer of CLIP's own names and comes back as it is; a CLIP-L gets them as
    by Load LoRA.
    """
    import reduced

    model, clip, _ = reduced.checkpoint("sd15")
    name = "lora_te_text_model_encoder_layers_0_mlp_fc1"
    outputs, inputs = clip.cond_stage_model.state_dict()[
        "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight"
    ].shape
    made = {}
    for number in range(2):
        layers = {"down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": (320, 320)}
        tensors = members.kohya(members.factors(number, layers=layers))
        text = {
            f"{name}.lora_down.weight": draw(number, 1, inputs),
            f"{name}.lora_up.weight": draw(9, outputs, 1),
        }
        made[number] = tensors | text
    space, _ = family.build(**_UPDATES, filename="text", lora_1=list(made.values()))
    point = family.draw(space, source="member", member_name="wire 1")[0]
    given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}
    patches, layers = app.module("nodes.weights.lora_intervals_comfy"), point.lazy_layers()
    targets = app.module("nodes.host.lora_targets")
    fit = targets.fit(clip.patcher, targets.sizes_of(layers), space.stems, of_text=True)
    patched = patches.apply_to_text(clip, patches.adapters(layers, fit.targets), 1.0)
    tokens = clip.tokenize("a portrait")
    stock = app.run(
        "LoraLoader",
        model=model,
        clip=clip,
        lora_name=save(family, made[0]),
        strength_model=1.0,
        strength_clip=1.0,
    )[1]
    wanted = stock.encode_from_tokens(stock.tokenize("a portrait"))
    torch.testing.assert_close(patched.encode_from_tokens(tokens), wanted, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(clip.encode_from_tokens(tokens), wanted, atol=1e-3)
    demo_clip = app.run("GBX_LoadDemoModel", weights="avatars-v2")[1]
    assert (
        app.run("GBX_W2WApply", model=family.model, point=family.point, clip=demo_clip, **given)[1]
        is demo_clip
    )


@pytest.mark.parametrize("strength", [0.5, -1.0])
def test_a_strength_reaches_the_clip_as_by_load_lora(family, app, strength):
    import reduced

    _, clip, _ = reduced.checkpoint("sd15")
    name = "lora_te_text_model_encoder_layers_0_mlp_fc1"
    weight = "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight"
    outputs, inputs = clip.cond_stage_model.state_dict()[weight].shape
    made = [
        {
            **members.kohya(members.factors(number, layers=LAYERS)),
            f"{name}.lora_down.weight": draw(number, 1, inputs),
            f"{name}.lora_up.weight": draw(9, outputs, 1),
        }
        for number in range(2)
    ]
    space, _ = family.build(**_UPDATES, filename=f"text {strength}", lora_1=made)
    point = family.draw(space, source="member", member_name="wire 1")[0]
    given = {"strength": strength, "start_percent": 0.0, "end_percent": 1.0}
    patched = app.run("GBX_W2WApply", model=family.model, point=point, clip=clip, **given)[1]
    stock = app.run(
        "LoraLoader",
        model=family.model,
        clip=clip,
        lora_name=save(family, made[0]),
        strength_model=1.0,
        strength_clip=strength,
    )[1]
    wanted = stock.encode_from_tokens(stock.tokenize("a portrait"))
    found = patched.encode_from_tokens(patched.tokenize("a portrait"))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
    plain = clip.encode_from_tokens(clip.tokenize("a portrait"))
    assert not torch.allclose(plain, wanted, atol=1e-3)


def save(family, tensors) -> str:
    import folder_paths

    save_file(tensors, family.folder / "text.safetensors")
    folder_paths.filename_list_cache.clear()
    return "text.safetensors"


def test_an_adapter_folder_of_peft_is_written_and_becomes_a_member(family, app):
    pytest.importorskip("peft")
    from pathlib import Path

    import folder_paths

    plain = [members.kohya(members.factors(70 + seed, layers=LAYERS)) for seed in range(3)]
    space, _ = family.build(**_UPDATES, filename="peft", lora_1=plain)
    point = family.draw(space, source="member", member_name="wire 2")[0]
    _, file, report = app.run(
        "GBX_W2WToLoRA",
        point=point,
        filename_prefix="loras/adapter",
        rank=1,
        file_format="peft",
        precision="fp32",
    )
    folder = Path(folder_paths.get_output_directory()) / file
    assert (folder / "adapter_config.json").is_file() and "% of the change is kept" in report
    read = app.module("nodes.common.lora_reader").read(folder).layers
    for name, factors in point.layers().items():
        wanted = torch.mm(*factors.matrices(torch.float64))
        torch.testing.assert_close(
            torch.mm(*read[name].matrices(torch.float64)), wanted, rtol=0, atol=1e-4
        )
