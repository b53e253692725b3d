"""The keys of LoRA files: kohya, diffusers, PEFT and ComfyUI's own names of one layer are one name
here.

The name is diffusers' dotted path, such as
`down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q`; U-Net layers that a file calls by
their place in the original code (`input_blocks.1.1...`) are brought to it. Flux and SD3 keep the
names of the file (`double_blocks...` or `transformer_blocks...`), because the two cut their layers
differently.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

DOWN = "down"
UP = "up"
ALPHA = "alpha"
#: The part that enlarges the layer's weight first, in control LoRAs of Flux.
RESHAPE = "reshape_weight"
#: Parts that add to a weight or bias without low-rank factors.
FULL = ("diff", "diff_b", "w_norm", "b_norm", "set_weight")

_PARTS = (
    (
        r"\.lora_down\.weight|_lora\.down\.weight|\.lora\.down\.weight|\.lora_linear_layer\.down\.weight",
        DOWN,
    ),
    (r"\.lora_up\.weight|_lora\.up\.weight|\.lora\.up\.weight|\.lora_linear_layer\.up\.weight", UP),
    (r"\.lora_A(?:\.[^.]+)?\.weight|\.lora_A", DOWN),
    (r"\.lora_B(?:\.[^.]+)?\.weight|\.lora_B", UP),
    (r"\.alpha", ALPHA),
    (r"\.lora_up\.bias|\.lora_B(?:\.[^.]+)?\.bias", "diff_b"),
    (r"\.dora_scale|\.lora_magnitude_vector(?:\..+)?", "DoRA"),
    (r"\.lora_mid\.weight", "LoCon with a middle factor"),
    (r"\.hada_(?:w|t)\w*", "LoHa"),
    (r"\.lokr_(?:w|t)\w*", "LoKr"),
    (r"\.(?:oft_blocks|oft_diag|rescale)", "OFT"),
    (r"\.[ab][12]\.weight", "GLoRA"),
    (r"\.reshape_weight", RESHAPE),
    *((rf"\.{name}", name) for name in FULL),
)
_SUFFIX = re.compile(
    "|".join(f"(?P<p{index}>{pattern})$" for index, (pattern, _) in enumerate(_PARTS))
)

_TEXT = re.compile(
    r"(?:base_model\.model\.)?(?:lora_te(?P<kohya>\d?)_|text_encoders?(?:_(?P<diffusers>\d))?\.|lora_prior_te_)"
)
#: How the canonical names of text encoder layers begin: lora_te1_, lora_te2_, ...
TEXT = "lora_te"
_PREFIXES = (
    "lora_unet_",
    "unet_",  # of a trainer that names it twice: lora_unet_unet_
    "lora_transformer_",
    "lycoris_",
    "lora_prior_unet_",
    "unet.base_model.model.",
    "base_model.model.",
    "unet.",
    "transformer.",
    "diffusion_model.",
    "model.",
)
# Names of several words, which a file that joins everything by "_" makes ambiguous.
_WORDS = (
    "down_blocks up_blocks mid_block transformer_blocks single_transformer_blocks proj_in "
    "proj_out proj_mlp to_q to_k to_v to_out to_add_out add_q_proj add_k_proj add_v_proj "
    "time_emb_proj conv_shortcut time_embedding add_embedding linear_1 linear_2 conv_in conv_out "
    "conv_norm_out ff_context norm1_context norm_out x_embedder context_embedder time_text_embed "
    "timestep_embedder guidance_embedder text_embedder double_blocks single_blocks img_attn "
    "img_mlp img_mod txt_attn txt_mlp txt_mod img_in txt_in time_in vector_in guidance_in "
    "in_layer out_layer joint_blocks context_block x_block adaLN_modulation final_layer pos_embed "
    "input_blocks middle_block output_blocks in_layers out_layers emb_layers skip_connection "
    "time_embed label_emb q_proj k_proj v_proj out_proj joint_transformer_blocks noise_refiner "
    "context_refiner to_gate to_qkv_mlp_proj text_fusion layerwise_blocks refiner_blocks "
    "self_attn cross_attn k_img v_img"
)
_WORD = re.compile(
    rf"(?:^|(?<=_))(?:{'|'.join(sorted(_WORDS.split(), key=len, reverse=True))}|[^_]+)(?=_|$)"
)
_ORIGINAL = re.compile(r"(input_blocks|output_blocks)\.(\d+)\.(\d+)\.(.+)")
_RESNET = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
_SINGLE = {
    "input_blocks.0.0": "conv_in",
    "out.0": "conv_norm_out",
    "out.2": "conv_out",
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "label_emb.0.0": "add_embedding.linear_1",
    "label_emb.0.2": "add_embedding.linear_2",
}
#: What diffusers calls the layers of Wan's blocks, and Wan itself. ComfyUI does not know them.
_WAN_OWN = {
    **{
        f"attn{number}.{of_diffusers}": f"{own}.{letter}"
        for number, own in ((1, "self_attn"), (2, "cross_attn"))
        for of_diffusers, letter in zip(
            ("to_q", "to_k", "to_v", "to_out.0"), ("q", "k", "v", "o"), strict=True
        )
    },
    "attn2.add_k_proj": "cross_attn.k_img",
    "attn2.add_v_proj": "cross_attn.v_img",
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
}
_WAN_OF_DIFFUSERS = re.compile(rf"(blocks\.\d+)\.({'|'.join(map(re.escape, _WAN_OWN))})")
_MIDDLE = {"0": "resnets.0", "1": "attentions.0", "2": "resnets.1"}
# cloneofsimo's lora, the oldest format, numbers the layers of SD1.x and SD2.x, as in `unet:0:down`.
# The order is that in which its injection walks through diffusers' modules of those years, checked
# by the shapes of such files.
_NUMBERED = re.compile(r"(unet|text_encoder):(\d+):(up|down)$")
_IN_BLOCK = (
    *(f"attn1.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")),
    "ff.net.0.proj",
    *(f"attn2.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")),
)
_BLOCKS = (
    *(f"down_blocks.{level}.attentions.{index}" for level in range(3) for index in range(2)),
    *(f"up_blocks.{level}.attentions.{index}" for level in range(1, 4) for index in range(3)),
    "mid_block.attentions.0",
)
_NUMBERED_UNET = tuple(
    f"{block}.transformer_blocks.0.{layer}" for block in _BLOCKS for layer in _IN_BLOCK
)
_NUMBERED_TEXT = ("k_proj", "v_proj", "q_proj", "out_proj")
_LONGEST_KEY = (
    1000  # a file's key is a stranger's: the patterns above take the square of its length
)
_REPEATS = 2  # residual blocks a level, in every U-Net of the SD family


class FileFormat(StrEnum):
    """What W2W To LoRA writes: one file with kohya's keys, or an adapter folder of the package
    peft.
    """

    KOHYA = "kohya"
    PEFT = "peft"


@dataclass(frozen=True)
class LoraKey:
    """A key of a LoRA file: the layer it belongs to, what it is of it, and whether it is of a text
    encoder.

    ``stem``: the layer's name in the file.
    """

    layer: str
    part: str
    text: bool
    stem: str


@functools.lru_cache(maxsize=2**15)
def parse(key: str) -> LoraKey | None:
    """What a key of a LoRA file means, or None when it is none of a LoRA.

    ``part`` is DOWN, UP, ALPHA, RESHAPE, one of FULL, or the name of another kind of adapter
    ("DoRA", "LoHa", ...).
    """
    if len(key) > _LONGEST_KEY:
        return None
    if found := _NUMBERED.match(key):
        return _numbered(found[1], int(found[2]), found[3])
    found = _SUFFIX.search(key)
    if not found:
        return None
    part = next(
        _PARTS[int(group[1:])][1] for group, text in found.groupdict().items() if text is not None
    )
    name = key[: found.start()]
    if found := _TEXT.match(name):
        return LoraKey(_canonical_text(name, found), part, True, name)
    return LoraKey(canonical(name), part, False, name)


def _numbered(owner: str, number: int, part: str) -> LoraKey | None:
    """A key of the oldest format; None beyond the layers that it has."""
    if owner == "unet":
        if number >= len(_NUMBERED_UNET):
            return None
        layer = _NUMBERED_UNET[number]
        return LoraKey(layer, part, False, usual_stem(layer))
    layer = (
        f"{TEXT}1_text_model_encoder_layers_{number // 4}_self_attn_{_NUMBERED_TEXT[number % 4]}"
    )
    return LoraKey(layer, part, True, layer.replace(f"{TEXT}1", TEXT))


def canonical(name: str) -> str:
    """The one name of a layer of the diffusion network, from the name that a file gives it without
    its last part.
    """
    name = _dotted(name)
    if found := _WAN_OF_DIFFUSERS.fullmatch(name):
        return f"{found[1]}.{_WAN_OWN[found[2]]}"
    return _diffusers(name)


def _dotted(stem: str) -> str:
    """A layer's name in a file without prefixes, with dots between its words."""
    name = module_name(stem).replace(".processor.", ".").replace("_processor_", "_")
    name = ".".join(_WORD.findall(name.replace(".", "_")))
    return re.sub(r"(attn\d?\.to_out)$", r"\1.0", name)


def module_name(stem: str) -> str:
    """A layer's name in a file without the prefixes that trainers put before the network's own
    names.
    """
    stripped = True
    while stripped:
        stripped = False
        for prefix in _PREFIXES:
            if stem.startswith(prefix):
                stem = stem[len(prefix) :]
                stripped = True
    return stem


def usual_stem(layer: str) -> str:
    """A layer's name in a file that ComfyUI, Forge and diffusers read: kohya's; for layers that
    diffusers names, in transformers, its own.
    """
    if layer.startswith(TEXT):
        return layer
    if _FUSED.match(layer):
        return f"diffusion_model.{layer}"
    if _OF_DIFFUSERS.match(layer):
        return f"transformer.{layer}"
    return f"lora_unet_{layer.replace('.', '_')}"


def loadable_stem(layer: str, stem: str, base: str) -> str:
    """A layer's name in a file for ComfyUI's Load LoRA, from its ``stem`` in another file, of a
    family of networks (``base_of``).

    Load LoRA knows a network's own names by `diffusion_model.`, without a prefix and in kohya's
    form, and what diffusers calls them by `transformer.`; not what peft or another trainer makes of
    either.
    """
    stem = stem.replace("lora_unet_unet_", "lora_unet_", 1)
    if _FUSED.match(layer):
        return usual_stem(layer)
    if _WAN_OF_DIFFUSERS.fullmatch(_dotted(stem)):
        return f"diffusion_model.{layer}"
    if stem.startswith(("base_model.model.", "transformer.")):
        name = module_name(stem)
        own = _OWN_BLOCKS.search(name) and not _OF_DIFFUSERS.match(layer)
        own = own or base in _NAMED_AS_BY_DIFFUSERS
        if _UNET_BLOCKS.match(layer):
            return usual_stem(layer)
        return f"{'diffusion_model' if own else 'transformer'}.{name}"
    if (
        stem.startswith("lora_unet_")
        and base in _RENAMED_BY_DIFFUSERS
        and _OF_DIFFUSERS.match(layer)
    ):
        # FLUX.2 has a layer here where others have a list of one.
        single = base == "FLUX.2" and layer.startswith("single_transformer_blocks.")
        return f"transformer.{layer.removesuffix('.0') if single else layer}"
    return stem


def keys(layer: str, stem: str = "") -> tuple[str, str, str]:
    """The keys of a layer's down, up and alpha in a file, by its usual name or by another."""
    stem = stem or usual_stem(layer)
    if "." in stem:
        return f"{stem}.lora_A.weight", f"{stem}.lora_B.weight", f"{stem}.alpha"
    return f"{stem}.lora_down.weight", f"{stem}.lora_up.weight", f"{stem}.alpha"


#: A layer that only a family of networks has, and the widths that tell it from others of that name.
_BASES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    (r"^joint_blocks\.", "SD3", ()),
    (r"^transformer_blocks\.\d+\.attn\.add_[qkv]_proj$", "SD3", (1536, 2432)),
    (r"^transformer_blocks\.\d+\.(img|txt)_(mlp|mod)\.", "Qwen-Image", ()),
    (r"^transformer_blocks\.([2-5]\d|19)\.attn\.(to|add)_[qkv]", "Qwen-Image", (3072,)),
    (r"^(double|single)_blocks\.", "Flux", (3072,)),
    (r"^single_transformer_blocks\.\d+\.(attn\.to_[qkv]|proj_mlp)$", "Flux", (3072,)),
    (r"^(double|single)_blocks\.", "FLUX.2", (4096, 6144)),
    (r"^single_transformer_blocks\..*to_qkv_mlp_proj$", "FLUX.2", ()),
    (r"^transformer_blocks\.\d+\.attn\.(to|add)_[qkv]", "FLUX.2", (4096, 6144)),
    (r"^layers\.\d+\.(attention|feed\.?_?forward)\.", "Z-Image", (3840,)),
    (r"^layers\.\d+\.(attention|feed\.?_?forward)\.", "Lumina 2", (2304,)),
    (r"^(transformer_blocks\.\d+|text_fusion)\..*attn\.to_gate$", "Krea 2", ()),
    (r"^blocks\.\d+\.attn\.(w[qkvo]|gate)$", "Krea 2", ()),
    (r"^joint_transformer_blocks\.", "AuraFlow", ()),
    (r"^blocks\.\d+\.(self|cross)[._]attn\.[qkvo]$", "Wan", ()),
    (r"^transformer_blocks\.\d+\.audio[._]", "LTX-2", ()),
    (r"^transformer_blocks\.\d+\.attn[12]\.to_[qkv]$", "PixArt", (1152,)),
    (r"^transformer_blocks\.\d+\.attn[12]\.to_[qkv]$", "LTX-Video", (2048,)),
    (r"^transformer_blocks\.\d+\.attn[12]\.to_[qkv]$", "LTX-2", (4096,)),
)
#: What diffusers calls layers of transformers.
_OF_DIFFUSERS = re.compile(r"((single|joint)_)?transformer_blocks\.|text_fusion\.")
#: Blocks by the own names of networks that diffusers renames, or does not know.
_OWN_BLOCKS = re.compile(
    r"(^|[._])(?<!transformer_)(blocks|layers)\.\d|(noise|context)_refiner\.|(down|up)_blocks\."
)
_UNET_BLOCKS = re.compile(r"(down_blocks\.\d+|up_blocks\.\d+|mid_block)\.(attentions|resnets)\.")
#: What it parts and Z-Image and Lumina 2 fuse: Load LoRA knows it beside their own names.
_FUSED = re.compile(r"(layers|noise_refiner|context_refiner)\.\d+\.attention\.to_")
#: Networks whose own names these are, which Load LoRA does not know by `transformer.`, and those
#: that have others of their own, so that it does not know these in kohya's form.
_NAMED_AS_BY_DIFFUSERS = ("LTX-Video", "LTX-2")
_RENAMED_BY_DIFFUSERS = ("AuraFlow", "Flux", "FLUX.2", "SD3", "Krea 2", "PixArt")
#: Where names of several families fit, the one that has a layer of its own.
_MORE_SPECIAL = ("LTX-2", "Krea 2", "FLUX.2")


def base_of(widths: dict[str, int]) -> str:
    """The family of base models that layers belong to, from their names and input widths; "unknown"
    where unclear.
    """
    context = {
        width
        for layer, width in widths.items()
        if re.search(r"^(down|up|mid)_block.*attn2\.to_[kv]$", layer)
    }
    names = {768: "SD1.x", 1024: "SD2.x", 2048: "SDXL"}
    if len(context) == 1 and (width := next(iter(context))) in names:
        return names[width]
    found = {
        base
        for pattern, base, inputs in _BASES
        if any(
            re.search(pattern, layer) and (not inputs or width in inputs)
            for layer, width in widths.items()
        )
    }
    for base in _MORE_SPECIAL:
        if base in found:
            return base
    return next(iter(found)) if len(found) == 1 else "unknown"


def _canonical_text(name: str, found: re.Match[str]) -> str:
    """kohya's name of a text encoder's layer, such as
    lora_te1_text_model_encoder_layers_0_mlp_fc1.
    """
    number = found["kohya"] or found["diffusers"] or "1"
    rest = name[found.end() :].replace(".", "_")
    for own, place in (
        ("clip_l_transformer_", "1"),
        ("clip_g_transformer_", "2"),
    ):  # ComfyUI's own names
        if rest.startswith(own):
            number = place
            rest = rest[len(own) :]
    return f"{TEXT}{number}_{rest}"


def _diffusers(name: str) -> str:
    """A layer of the original U-Net by its name in diffusers; other names as they are."""
    if name in _SINGLE:
        return _SINGLE[name]
    head, _, rest = name.partition(".")
    if head == "middle_block":
        part, _, rest = rest.partition(".")
        return f"mid_block.{_MIDDLE.get(part, part)}.{_RESNET.get(rest, rest)}"
    found = _ORIGINAL.fullmatch(name)
    if not found:
        return name
    side = found[1]
    number = int(found[2])
    slot = found[3]
    rest = found[4]
    down = side == "input_blocks"
    level, index = divmod(number - 1 if down else number, _REPEATS + 1)
    block = f"{'down' if down else 'up'}_blocks.{level}"
    if rest in ("op", "conv"):
        return f"{block}.{'down' if down else 'up'}samplers.0.conv"
    return f"{block}.{'resnets' if slot == '0' else 'attentions'}.{index}.{_RESNET.get(rest, rest)}"


def declared_base(metadata: Mapping[str, str]) -> str:
    """The family of base models that a file's metadata declares (kohya's keys, modelspec); "" where
    it does not.
    """
    name = metadata.get("ss_sd_model_name", "").lower()
    for word, base in (("pony", "Pony"), ("illustrious", "Illustrious"), ("noob", "Illustrious")):
        if word in name:
            return base
    version = metadata.get("ss_base_model_version", "")
    architecture = metadata.get("modelspec.architecture", "")
    about = f"{version} {architecture}".lower()
    known = {
        "SDXL": ("sdxl", "-xl-"),
        "SD1.x": ("sd_v1", "diffusion-v1"),
        "SD2.x": ("sd_v2", "diffusion-v2"),
        "SD3": ("sd3", "diffusion-3"),
        "Flux": ("flux",),
    }
    return next((base for base, words in known.items() if any(word in about for word in words)), "")


def trim_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without ones at its end: a linear layer and a convolution of one pixel are the
    same.
    """
    shape = tuple(shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape
