"""Training goes on from LoRA files of every kind at their true change, or says why not."""

import pytest
import torch
from safetensors.torch import save_file

LINEAR = "input_blocks_1_1_transformer_blocks_0_attn1_to_q"
PROJ = "input_blocks_1_1_proj_in"
KERNEL = "input_blocks_1_0_in_layers_2"
WEIGHTS = {
    name: f"diffusion_model.{dotted}.weight"
    for name, dotted in (
        (LINEAR, "input_blocks.1.1.transformer_blocks.0.attn1.to_q"),
        (PROJ, "input_blocks.1.1.proj_in"),
        (KERNEL, "input_blocks.1.0.in_layers.2"),
    )
}
REFUSED = ("DoRA", "BOFT", "GLoRA", "set", "Tucker")


@pytest.fixture(scope="module")
def model(app):
    import reduced

    return reduced.checkpoint("sd15")[0]


@pytest.fixture
def go_on(app, model, tmp_path):
    """Adapters for the MODEL from a file of tensors, and stock Load LoRA's dW of the same file."""
    import folder_paths

    from studies.weights import lora_kinds

    folder_paths.add_model_folder_path("loras", str(tmp_path))
    adapters = app.module("nodes.host.training.adapters")

    def run(tensors, algorithm="LoRA", on=model, **options):
        # its own: ComfyUI takes the first file of a name in all folders
        name = f"{tmp_path.name}.safetensors"
        save_file(tensors, tmp_path / name)
        folder_paths.filename_list_cache.clear()
        existing, _ = adapters.read_lora(name)
        made = adapters.create(on, algorithm, 2, torch.float32, 1, existing, **options)
        return made, lora_kinds.stock_updates(on, tensors)

    return run


def parts(kind, layer, model, prefix="lora_unet_", **names):
    from studies.weights import lora_kinds

    shape = tuple(model.model.state_dict()[WEIGHTS[layer]].shape)
    made = lora_kinds.adapter(kind, shape, 3, **names)
    return made and {f"{prefix}{layer}.{part}": value for part, value in made.items()}


def update(made, model, key):
    weight = model.model.state_dict()[key].detach().clone().float()
    with torch.inference_mode(False), torch.no_grad():
        return made.functions[key](weight.clone()) - weight


@pytest.mark.parametrize("layer", [LINEAR, PROJ, KERNEL])
@pytest.mark.parametrize(
    "kind",
    ["LoRA", "LoRA without alpha", "float16", "float8", "LoHa", "LoKr", "OFT", "diff", *REFUSED],
)
def test_the_change_of_a_file_is_where_training_starts(go_on, model, kind, layer):
    """Against stock Load LoRA, relative 1e-4; what the trainer cannot hold is refused with the
    layer's name.
    """
    tensors = parts(kind, layer, model)
    if tensors is None:
        pytest.skip("the kind has no such layer")
    if kind in REFUSED:
        with pytest.raises(ValueError, match=r"Training cannot go on from down_blocks\.0.*kind"):
            go_on(tensors)
        return
    made, stock = go_on(tensors)
    key = WEIGHTS[layer]
    assert float(stock[key].norm()) > 0.01
    torch.testing.assert_close(
        update(made, model, key), stock[key], rtol=0, atol=1e-4 * float(stock[key].norm())
    )
    assert "1 weights go on from it" in made.report and "are new" in made.report


@pytest.mark.parametrize(
    "names",
    [("lora_A.weight", "lora_B.weight"), ("lora_A.default.weight", "lora_B.default.weight")],
)
def test_files_without_alpha_keep_their_strength(go_on, model, names):
    tensors = parts("LoRA without alpha", LINEAR, model, down=names[0], up=names[1])
    made, stock = go_on(tensors)
    key = WEIGHTS[LINEAR]
    torch.testing.assert_close(update(made, model, key), stock[key], rtol=0, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["LoRA", "LoHa", "LoKr", "OFT"])
def test_the_nodes_own_output_of_every_algorithm(app, go_on, model, algorithm):
    """Also as the queue calls it: under inference mode."""
    adapters = app.module("nodes.host.training.adapters")
    first = adapters.create(model, algorithm, 2, torch.float32, 1, None, layers="input_blocks.1.")
    with torch.no_grad():
        for number, parameter in enumerate(first.parameters.values()):
            if parameter.requires_grad:
                parameter.add_(
                    0.05
                    * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                )
    with torch.inference_mode():
        made, _ = go_on(first.lora(), algorithm, layers="input_blocks.1.")
    assert first.parameters.keys() == made.parameters.keys()
    for name, value in first.parameters.items():
        assert torch.equal(made.parameters[name], value), name
        assert not made.parameters[name].is_inference()
    assert f"{len(first.functions)} weights go on from it, 0 are new." in made.report


@pytest.mark.parametrize("style", ["unet.{}.lora.down.weight", "{}_lora.down.weight"])
def test_diffusers_names(go_on, model, style):
    """As in eight of eight real files that were tried."""
    block = "down_blocks.0.attentions.0.transformer_blocks.0.attn1"
    name = f"{block}.to_q" if style.startswith("unet") else f"{block}.processor.to_q"
    down = style.format(name)
    weight = model.model.state_dict()[WEIGHTS[LINEAR]]
    tensors = {
        down: torch.randn(2, weight.shape[1]),
        down.replace("down", "up"): torch.randn(len(weight), 2),
    }
    tensors = {key.replace("up_blocks", "down_blocks"): value for key, value in tensors.items()}
    made, _ = go_on(tensors)
    wanted = next(v for k, v in tensors.items() if "up.weight" in k) @ tensors[down]
    torch.testing.assert_close(update(made, model, WEIGHTS[LINEAR]), wanted, rtol=0, atol=1e-4)


def test_parts_of_a_fused_weight_go_on_as_one(go_on):
    """Flux's q and v by diffusers names: rows of one weight; ranks add up, dW as stock Load LoRA's,
    1e-5.
    """
    import reduced

    model = reduced.checkpoint("flux")[0]
    tensors = {}
    for number, name in enumerate(("to_q", "to_v")):
        stem = f"transformer.transformer_blocks.0.attn.{name}"
        generator = torch.Generator().manual_seed(number)
        tensors[f"{stem}.lora_A.weight"] = torch.randn(2 + number, 128, generator=generator)
        tensors[f"{stem}.lora_B.weight"] = torch.randn(128, 2 + number, generator=generator)
        tensors[f"{stem}.alpha"] = torch.tensor(1.0)
    made, stock = go_on(tensors, on=model)
    ((key, wanted),) = stock.items()
    assert int((wanted.norm(dim=1) > 0).sum()) == 256
    torch.testing.assert_close(update(made, model, key), wanted, rtol=0, atol=1e-4)


def test_layers_of_other_sizes_are_refused_by_name(go_on, model):
    tensors = {
        f"lora_unet_{LINEAR}.lora_down.weight": torch.ones(2, 77),
        f"lora_unet_{LINEAR}.lora_up.weight": torch.ones(32, 2),
    }
    with pytest.raises(ValueError, match=r"attn1\.to_q of 32 x 77 here, 32 x 32 in the model"):
        go_on(tensors)


def test_numbers_that_are_not_finite_name_file_and_layer(go_on, model):
    tensors = parts("LoRA", LINEAR, model)
    tensors[next(iter(tensors))][0, 0] = float("nan")
    with pytest.raises(
        ValueError, match=r"test_num.*safetensors holds NaN or infinity in down_blocks.*attn1\.to_q"
    ):
        go_on(tensors)


def test_what_is_left_out_is_named(go_on, model):
    extra = {
        "lora_unet_nowhere.lora_down.weight": torch.ones(2, 2),
        "lora_unet_nowhere.lora_up.weight": torch.ones(2, 2),
    }
    other = parts("LoRA", KERNEL, model)
    made, _ = go_on({**parts("LoRA", LINEAR, model), **other, **extra}, layers="attn1")
    assert "nowhere (no such layer)" in made.report
    assert "resnets.0.conv1 (not among the layers that are trained)" in made.report


def test_biases_and_norms_go_on(go_on, model):
    tensors = {
        "diffusion_model.out.0.diff": torch.full((32,), 0.5),
        "diffusion_model.out.2.diff_b": torch.ones(4),
    }
    made, _ = go_on(tensors)
    assert torch.equal(
        made.functions["diffusion_model.out.0.weight"].value, tensors["diffusion_model.out.0.diff"]
    )
    assert torch.equal(made.functions["diffusion_model.out.2.bias"].value, torch.ones(4))
