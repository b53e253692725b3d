"""Every form of LoRA file gives the same factors, and what is none is named in a sentence."""

import runpy
import sys

import members
import pytest
import repository
import torch
from glassbox.nodes.common import lora_keys, lora_reader
from glassbox.nodes.weights import lora_writer
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def peft():
    """The package, which needs a torchvision that can be imported."""
    runpy.run_path(str(repository.ROOT / "tools" / "launcher" / "boot.py"))["cure_torchvision"]()
    return pytest.importorskip("peft")


@pytest.fixture
def made():
    return members.factors(3, rank=2)


def products(lora):
    return {name: torch.mm(*one.matrices(torch.float64)) for name, one in lora.layers.items()}


def expected(made, scale=1.0):
    return {name: scale * (up.double() @ down.double()) for name, (down, up) in made.items()}


def same(found, wanted):
    assert set(found) == set(wanted)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("form", "scale"),
    [
        (lambda made: members.kohya(made, 1.0), 0.5),
        (lambda made: members.kohya(made, None), 1.0),
        (members.peft, 1.0),
        (lambda made: members.peft(made, "identity1"), 1.0),
        (members.diffusers, 1.0),
        (members.old_diffusers, 1.0),
        (lambda made: members.comfyui(made, extra=False), 1.0),
    ],
    ids=[
        "kohya",
        "kohya without alpha",
        "PEFT",
        "PEFT with adapter name",
        "diffusers",
        "old diffusers",
        "ComfyUI",
    ],
)
def test_every_form_gives_the_same_change(made, form, scale):
    same(products(lora_reader.parse_tensors(form(made))), expected(made, scale))


def test_alpha_of_a_peft_folder(made, tmp_path):
    folder = members.write_peft_folder(tmp_path / "ada", made, alpha=27)
    same(products(lora_reader.read(folder)), expected(made, 13.5))
    stabilized = members.write_peft_folder(tmp_path / "bob", made, alpha=4, use_rslora=True)
    same(products(lora_reader.read(stabilized)), expected(made, 4 / 2**0.5))


def test_a_peft_folder_is_read_without_peft_and_not_written(made, tmp_path, monkeypatch):
    folder = members.write_peft_folder(tmp_path / "ada", made, alpha=27)
    monkeypatch.setitem(sys.modules, "peft", None)
    lora = lora_reader.read(folder)
    same(products(lora), expected(made, 13.5))
    with pytest.raises(lora_reader.peft_files.MissingPeftError, match="pip install peft"):
        lora_writer.write_peft(lora.layers, tmp_path / "bob")


def test_alpha_in_the_header_of_newer_diffusers(made, tmp_path):
    path = tmp_path / "lora.safetensors"
    save_file(
        members.diffusers(made),
        path,
        {"lora_adapter_metadata": '{"unet.r": 2, "unet.lora_alpha": 8}'},
    )
    same(products(lora_reader.read(path)), expected(made, 4.0))


def test_changes_outside_the_network_are_dropped_and_their_norms_reported(made):
    tensors = members.comfyui(made)
    te = {
        f"lora_te_text_model_encoder_layers_0_mlp_fc1.lora_{side}.weight": torch.ones(*shape)
        for side, shape in (("down", (1, 4)), ("up", (4, 1)))
    }
    lora = lora_reader.parse_tensors({**tensors, **te})
    assert set(lora.layers) == set(members.LAYERS)
    assert lora.without_text().dropped == pytest.approx(
        {"biases and norms": 12 * 0.25, "text encoder": 16.0}
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x.lora_magnitude_vector": torch.ones(2)}, "is a DoRA"),
        ({"lora_unet_x.dora_scale": torch.ones(2)}, "is a DoRA"),
        ({"lora_unet_x.hada_w1_a": torch.ones(2)}, "is a LoHa"),
        ({"lora_unet_x.lokr_w1": torch.ones(2)}, "is a LoKr"),
        (
            {"lora_unet_mid_block_x.lora_up.weight": torch.ones(2, 1)},
            "only one factor of mid_block.x",
        ),
        (
            {
                "lora_unet_x.lora_up.weight": torch.full((2, 1), float("nan")),
                "lora_unet_x.lora_down.weight": torch.ones(1, 2),
            },
            "NaN or infinity in x",
        ),
        (
            {
                "lora_unet_x.lora_up.weight": torch.ones(2, 3),
                "lora_unet_x.lora_down.weight": torch.ones(1, 2),
            },
            "not fit",
        ),
        (
            {
                "lora_unet_x.lora_up.weight": torch.ones(2),
                "lora_unet_x.lora_down.weight": torch.ones(1, 2),
            },
            "not fit",
        ),
        (
            {
                "lora_unet_x.lora_up.weight": torch.ones(2, 1),
                "lora_unet_x.lora_down.weight": torch.ones(1, 2),
                "lora_unet_x.alpha": torch.tensor(float("nan")),
            },
            "NaN or infinity in x",
        ),
        (
            {"double_blocks.0.processor.qkv_lora1.down.weight": torch.ones(2, 2)},
            "unknown keys, such as double_blocks.0",
        ),
    ],
    ids=[
        "PEFT DoRA",
        "DoRA",
        "LoHa",
        "LoKr",
        "half",
        "NaN",
        "ranks",
        "no matrix",
        "alpha",
        "unknown keys",
    ],
)
def test_other_adapters_and_damaged_factors_are_refused(made, tmp_path, change, sentence):
    path = tmp_path / "bad.safetensors"
    save_file({**members.kohya(made), **change}, path)
    with pytest.raises(ValueError, match=f"bad.safetensors .*{sentence}"):
        lora_reader.read(path)


def test_float8_factors_and_rank_patterns_are_read(made):
    """float8 is read as it is; with a rank_pattern the scale is alpha over the layer's own rank, as
    in PEFT.
    """
    small = {
        key: value.to(torch.float8_e4m3fn) if value.ndim > 1 else value
        for key, value in members.kohya(made).items()
    }
    found = products(lora_reader.parse_tensors(small))
    for name, wanted in expected(made, 0.5).items():
        assert float((found[name] - wanted).norm() / wanted.norm()) < 0.1
    config = {"r": 1, "lora_alpha": 6, "rank_pattern": {"attn1.to_q": 2}}
    same(products(lora_reader.parse_tensors(members.peft(made), config)), expected(made, 3.0))


def test_an_alpha_pattern_sets_the_alpha_of_the_layers_it_names(made):
    config = {"r": 2, "lora_alpha": 6, "alpha_pattern": {"attn1.to_q": 2}}
    found = products(lora_reader.parse_tensors(members.peft(made), config))
    for name, wanted in expected(made).items():
        scale = 1.0 if name.endswith("attn1.to_q") else 3.0
        torch.testing.assert_close(found[name], scale * wanted, atol=1e-6, rtol=1e-6)


def test_the_header_alone_refuses_other_files(made, tmp_path):
    """A checkpoint of gigabytes is refused without reading it."""
    for name, tensors, why in (
        ("model", {"model.diffusion_model.out.2.weight": torch.ones(2, 2)}, "holds no LoRA"),
        ("dora", {**members.kohya(made), "lora_unet_x.dora_scale": torch.ones(2)}, "is a DoRA"),
    ):
        save_file(tensors, tmp_path / f"{name}.safetensors")
        with pytest.raises(ValueError, match=f"{name}.safetensors {why}"):
            lora_reader.read_header(tmp_path / f"{name}.safetensors")


def test_files_with_one_stem_keep_their_suffix(made, tmp_path):
    from glassbox.nodes.weights.member_sources import file_sources

    tensors = members.kohya(made)
    for place in ("ada.safetensors", "b/ada.safetensors"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        save_file(tensors, tmp_path / place)
    torch.save(tensors, tmp_path / "ada.pt")
    members.write_peft_folder(tmp_path / "bob", made, alpha=2)
    assert [source.name for source in file_sources(tmp_path)] == [
        "ada.pt",
        "ada.safetensors",
        "b/ada",
        "bob",
    ]


def test_files_without_a_lora_are_refused(tmp_path):
    for name, content in (("a.safetensors", b"nothing"), ("b.pt", b"nothing")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} cannot be read"):
            lora_reader.read(tmp_path / name)
    save_file({"model.weight": torch.ones(2)}, tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match="holds no LoRA"):
        lora_reader.read(tmp_path / "c.safetensors")


class Harmful:
    """Unpickling it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_is_never_executed(tmp_path):
    torch.save({"x": Harmful(tmp_path / "harm.txt")}, tmp_path / "lora.pt")
    with pytest.raises(ValueError, match=r"lora.pt cannot be read"):
        lora_reader.read(tmp_path / "lora.pt")
    assert not (tmp_path / "harm.txt").exists()


def test_shapes_come_from_the_header(made, tmp_path):
    path = tmp_path / "lora.safetensors"
    save_file(members.comfyui(made), path)
    wanted = {name: ((inputs,), (outputs,)) for name, (inputs, outputs) in members.LAYERS.items()}
    assert (
        lora_reader.read_header(path).shapes
        == wanted
        == lora_reader.header_of(lora_reader.read(path)).shapes
    )


def test_an_exported_lora_reads_back(made):
    lora = lora_reader.parse_tensors(members.kohya(made, 27.0))
    tensors = lora_writer.to_tensors(lora.layers)
    assert all(float(value) == 27 for key, value in tensors.items() if key.endswith(".alpha"))
    same(products(lora_reader.parse_tensors(tensors)), products(lora))


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        (
            "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_out_0",
            "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_out.0",
        ),
        ("diffusion_model.output_blocks.5.2.conv", "up_blocks.1.upsamplers.0.conv"),
        ("diffusion_model.input_blocks.3.0.op", "down_blocks.0.downsamplers.0.conv"),
        ("diffusion_model.middle_block.2.emb_layers.1", "mid_block.resnets.1.time_emb_proj"),
        ("lora_unet_double_blocks_0_img_attn_qkv", "double_blocks.0.img_attn.qkv"),
        (
            "transformer.single_transformer_blocks.3.attn.to_q",
            "single_transformer_blocks.3.attn.to_q",
        ),
        (
            "lora_transformer_transformer_blocks_3_ff_net_0_proj",
            "transformer_blocks.3.ff.net.0.proj",
        ),
        (
            "lora_unet_joint_blocks_0_context_block_attn_qkv",
            "joint_blocks.0.context_block.attn.qkv",
        ),
    ],
)
def test_layer_names_are_canonical(name, canonical):
    assert lora_keys.canonical(name) == canonical


def test_the_base_model_family_follows_from_layer_widths():
    key = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"
    assert [lora_keys.base_of({key: width}) for width in (768, 1024, 2048, 96)] == [
        "SD1.x",
        "SD2.x",
        "SDXL",
        "unknown",
    ]
    assert lora_keys.base_of({"double_blocks.0.img_attn.qkv": 3072}) == "Flux"


def test_a_peft_folder_is_what_peft_loads(peft, tmp_path):
    """peft itself reads the folder into a network of these layers: the outputs change by dW x
    (1e-5).
    """

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.to_q, self.conv = torch.nn.Linear(6, 5), torch.nn.Conv2d(3, 4, 3)

        def forward(self, x, image):
            return self.to_q(x), self.conv(image)

    generator = members.generator(5)
    layers = {
        "to_q": lora_reader.Factors(
            torch.randn(2, 6, generator=generator), torch.randn(5, 2, generator=generator), 1.5
        ),
        "conv": lora_reader.Factors(
            torch.randn(3, 3, 3, 3, generator=generator),
            torch.randn(4, 3, 1, 1, generator=generator),
            0.5,
        ),
        "lora_te1_x": lora_reader.Factors(torch.ones(1, 2), torch.ones(2, 1)),
    }
    remark = lora_writer.write_peft(layers, tmp_path / "ada")
    assert "1 layers of text encoders are left out" in remark
    block, x, image = (
        Block(),
        torch.randn(2, 6, generator=generator),
        torch.randn(1, 3, 5, 5, generator=generator),
    )
    before = block(x, image)
    after = peft.PeftModel.from_pretrained(block, str(tmp_path / "ada"))(x, image)
    up, down = layers["to_q"].matrices()
    torch.testing.assert_close(after[0] - before[0], x @ (up @ down).T, atol=1e-5, rtol=1e-5)
    up, down = layers["conv"].matrices()
    change = torch.nn.functional.conv2d(image, (up @ down).view(4, 3, 3, 3))
    torch.testing.assert_close(after[1] - before[1], change, atol=1e-5, rtol=1e-5)
    read = lora_reader.read(tmp_path / "ada").layers
    for name in ("to_q", "conv"):
        torch.testing.assert_close(
            torch.mm(*read[name].matrices()), torch.mm(*layers[name].matrices())
        )


def test_a_reduced_export_reports_what_is_lost(made):
    """The report's fraction is that of the truncated SVD of all full updates (1e-4)."""
    layers = lora_reader.parse_tensors(members.kohya(made)).layers
    reduced, report = lora_writer.reduce(layers, 1)
    values = [torch.linalg.svdvals(one) for one in expected(made).values()]
    kept = sum(float(one[0] ** 2) for one in values) / sum(
        float(one.square().sum()) for one in values
    )
    assert all(factors.rank == 1 for factors in reduced.values())
    assert f"{100 * kept:.2f} % of the change is kept" in report
    same(
        products(lora_reader.Lora(lora_writer.reduce(layers, 0)[0])),
        products(lora_reader.Lora(layers)),
    )


def test_the_oldest_format_is_read_by_its_order_of_layers():
    """cloneofsimo's `unet:17:up`: nine layers a block, down, up and middle blocks, then CLIP's
    projections.
    """
    wanted = {
        0: "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
        4: "down_blocks.0.attentions.0.transformer_blocks.0.ff.net.0.proj",
        6: "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k",
        9 * 6 + 3: "up_blocks.1.attentions.0.transformer_blocks.0.attn1.to_out.0",
        143: "mid_block.attentions.0.transformer_blocks.0.attn2.to_out.0",
    }
    tensors = {}
    for number in wanted:
        tensors |= {
            f"unet:{number}:down": torch.ones(2, 3),
            f"unet:{number}:up": torch.full((4, 2), 1.0 + number),
        }
    tensors |= {
        "text_encoder:5:down": torch.ones(1, 3),
        "text_encoder:5:up": torch.ones(3, 1),
        "<s1>": torch.ones(3),
    }
    lora = lora_reader.parse_tensors(tensors)
    assert {name: float(one.up[0, 0]) - 1 for name, one in lora.layers.items()} == {
        v: k for k, v in wanted.items()
    }
    assert list(lora.text) == ["lora_te1_text_model_encoder_layers_1_self_attn_v_proj"]
    assert all(one.scale == 1 for one in lora.layers.values())


def test_layers_keep_their_name_in_the_file(made):
    lora = lora_reader.parse_tensors(members.diffusers(made))
    assert lora.stems == {layer: f"unet.{layer}" for layer in made}
    kept = {"context_refiner.0.attention.to_q": "diffusion_model.context_refiner.0.attention.to_q"}
    layers = {layer: lora_reader.Factors(torch.ones(1, 8), torch.ones(8, 1)) for layer in kept}
    assert lora_writer.file_stems(layers, kept) == kept
    assert set(lora_writer.to_tensors(layers, kept)) == {
        f"{kept['context_refiner.0.attention.to_q']}.{end}"
        for end in ("lora_A.weight", "lora_B.weight", "alpha")
    }
    peft = {
        layer: stem.replace("diffusion_model", "base_model.model") for layer, stem in kept.items()
    }
    assert lora_writer.file_stems(layers, peft) == kept
    layer = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"  # of an unknown U-Net
    unet = {layer: lora_reader.Factors(torch.ones(1, 8), torch.ones(8, 1))}
    assert lora_writer.file_stems(unet, {layer: f"base_model.model.{layer}"}) == {
        layer: f"lora_unet_{layer.replace('.', '_')}"
    }


def test_a_control_lora_is_refused_by_its_layer():
    stem = "diffusion_model.img_in"
    tensors = {f"{stem}.lora_A.weight": torch.ones(1, 8), f"{stem}.lora_B.weight": torch.ones(4, 1)}
    with pytest.raises(ValueError, match="enlarges img_in"):
        lora_reader.parse_tensors({**tensors, f"{stem}.reshape_weight": torch.tensor([4, 8])})


def test_a_full_rank_export_is_the_smallest_that_loses_nothing():
    """Rank 3 hidden in factors of rank 9: found, and dW equal to 1e-5 relative; float16 within
    1e-3.
    """
    generator = torch.Generator().manual_seed(0)
    down = torch.randn(9, 3, generator=generator) @ torch.randn(3, 40, generator=generator)
    layers = {"a": lora_reader.Factors(down, torch.randn(24, 9, generator=generator), 0.3)}
    wanted = torch.mm(*layers["a"].matrices(torch.float64))
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-3)):
        reduced, report = lora_writer.reduce(layers, 0, dtype=dtype)
        assert reduced["a"].rank == 3 and reduced["a"].down.dtype == dtype
        found = torch.mm(*reduced["a"].matrices(torch.float64))
        assert float((found - wanted).norm() / wanted.norm()) < tolerance
        assert "1 layers of rank 3 to 3" in report and "100.00 % of the change is kept" in report


def test_factors_are_copied_where_they_are_parts_of_larger_tensors(made):
    """Of a space's vector, which can be freed then; a factor on memory of its own is not held
    twice.
    """
    flat = torch.arange(12.0)
    own, part = torch.ones(2, 3), flat[3:9].view(2, 3)
    factors = {"mid_block.attentions.0.proj_in": lora_reader.Factors(part, torch.ones(5, 2))}
    factors["mid_block.attentions.0.proj_out"] = lora_reader.Factors(own, torch.ones(5, 4)[:, ::2])
    tensors = lora_writer.to_tensors(factors)
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in tensors.values())
    found = {name.rpartition("_proj_")[2]: one for name, one in tensors.items()}
    assert found["out.lora_down.weight"].data_ptr() == own.data_ptr()
    assert torch.equal(found["in.lora_down.weight"], part) and found[
        "out.lora_up.weight"
    ].shape == (5, 2)
