"""Every layer of every LoRA: what the pack applies and exports, beside ComfyUI's own Load LoRA,
cell by cell.

Networks are ComfyUI's own classes, narrow and two blocks deep, with random weights. For each scheme
of names that its loader knows for a network or its text encoders, a file holds a LoRA of every
matrix; for each kind of adapter, one of up to six layers of each shape. A cell compares dW of all
weights: Load LoRA of the file, W2W Apply of the file as it is read, and Load LoRA of the file that
the pack exports without the MODEL.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import torch

from ..common import host, results
from ..world.release import ASSETS
from .lora_kinds import KINDS, RANK, adapter, draw, stock_updates, updates

SEED = 0
_UNET = {
    "image_size": 32, "legacy": False, "use_spatial_transformer": True, "in_channels": 4,
    "out_channels": 4,
    "model_channels": 32, "use_temporal_attention": False, "use_temporal_resblock": False,
}  # fmt: skip
_SD15 = {
    **_UNET, "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4],
    "transformer_depth": [1] * 6 + [0, 0],
    "transformer_depth_middle": 1, "transformer_depth_output": [1] * 9 + [0] * 3,
    "context_dim": 768,
    "adm_in_channels": None, "use_linear_in_transformer": False, "num_heads": 8,
}  # fmt: skip
_SDXL = {
    **_UNET, "num_res_blocks": [2, 2, 2], "channel_mult": [1, 2, 4],
    "transformer_depth": [0, 0, 1, 1, 2, 2],
    "transformer_depth_middle": 2, "transformer_depth_output": [0, 0, 0, 1, 1, 1, 2, 2, 2],
    "context_dim": 2048,
    "adm_in_channels": 2816, "num_classes": "sequential", "use_linear_in_transformer": True,
    "num_heads": -1,
    "num_head_channels": 16,
}  # fmt: skip
_FLUX = {
    "image_model": "flux", "in_channels": 16, "out_channels": 16, "patch_size": 2, "vec_in_dim": 64,
    "context_in_dim": 64, "hidden_size": 128, "mlp_ratio": 4.0, "num_heads": 4, "depth": 2,
    "depth_single_blocks": 2,
    "axes_dim": [8, 12, 12], "theta": 10000, "qkv_bias": True, "guidance_embed": True,
}  # fmt: skip
_SD3 = {
    "in_channels": 16, "out_channels": 16, "patch_size": 2, "input_size": None, "depth": 2,
    "adm_in_channels": 128,
    "qkv_bias": True, "pos_embed_max_size": 32, "num_patches": 32 * 32,
    "pos_embed_scaling_factor": None,
    "context_embedder_config": {"target": "torch.nn.Linear",
    "params": {"in_features": 64, "out_features": 128}},
}  # fmt: skip
_LUMINA = {
    "image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": 96, "n_layers": 2,
    "n_refiner_layers": 1,
    "n_heads": 4, "n_kv_heads": 4, "multiple_of": 32, "ffn_dim_multiplier": 2.0, "qk_norm": True,
    "cap_feat_dim": 64,
    "axes_dims": [8, 8, 8], "axes_lens": [32, 32, 32],
}  # fmt: skip
#: A class of comfy.supported_models and the configuration of its network.
NETWORKS = {
    "SD1.5": ("SD15", _SD15),
    "SDXL": ("SDXL", _SDXL),
    "SD3": ("SD3", _SD3),
    "Flux": ("Flux", _FLUX),
    "Lumina2": ("Lumina2", _LUMINA),
    "Z-Image": ("ZImage", {**_LUMINA, "z_image_modulation": True}),
    "HiDream": ("HiDream", {
        "image_model": "hidream", "patch_size": 2, "in_channels": 16, "out_channels": 16,
        "num_layers": 2,
        "num_single_layers": 2, "attention_head_dim": 32, "num_attention_heads": 4,
        "caption_channels": [64, 64],
        "text_emb_dim": 64, "num_routed_experts": 2, "num_activated_experts": 1,
        "axes_dims_rope": [16, 8, 8],
        "max_resolution": [32, 32], "llama_layers": [0, 1],
    }),
    "LTXV": ("LTXV", {
        "image_model": "ltxv", "in_channels": 16, "cross_attention_dim": 128,
        "attention_head_dim": 32,
        "num_attention_heads": 4, "caption_channels": 64, "num_layers": 2,
    }),
    "Qwen-Image": ("QwenImage", {
        "image_model": "qwen_image", "in_channels": 64, "num_layers": 2, "attention_head_dim": 32,
        "num_attention_heads": 4, "joint_attention_dim": 64, "pooled_projection_dim": 64,
        "axes_dims_rope": [8, 12, 12],
    }),
    "Wan 2.1": ("WAN21_T2V", {
        "image_model": "wan2.1", "model_type": "t2v", "dim": 128, "ffn_dim": 128, "freq_dim": 64,
        "text_dim": 64,
        "num_heads": 4, "num_layers": 2, "in_dim": 16, "out_dim": 16,
    }),
}  # fmt: skip
#: How names of a scheme begin, in ComfyUI's table; the first that fits counts.
SCHEMES = {
    "kohya": "lora_unet_",
    "OneTrainer": "lora_transformer_",
    "SimpleTuner": "lycoris_",
    "PEFT": "base_model.model.",
    "ComfyUI, AI Toolkit": "diffusion_model.",
    "diffusers": ("transformer.", "unet."),
    "bare": "",
}
#: Text encoders by network, as ComfyUI names them, and how the schemes' names of their layers
#: begin.
ENCODERS = {
    "SD1.5": ("clip_l",),
    "SDXL": ("clip_l", "clip_g"),
    "SD3": ("clip_l", "clip_g", "t5xxl"),
    "Flux": ("clip_l", "t5xxl"),
}
TEXT_SCHEMES = {
    "kohya, one encoder": "lora_te_",
    "kohya, OneTrainer": "lora_te",
    "ComfyUI": "text_encoders.",
    "diffusers": "text_encoder",
}
_CLIP = {
    "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96,
    "eos_token_id": 2,
    "hidden_act": "gelu", "max_position_embeddings": 77, "vocab_size": 96,
}  # fmt: skip
_T5 = {
    "num_layers": 2, "d_model": 64, "d_kv": 16, "num_heads": 3, "d_ff": 96,
    "dense_act_fn": "gelu_pytorch_tanh",
    "is_gated_act": True, "model_type": "t5", "vocab_size": 32,
}  # fmt: skip
_PARTS = {"kohya": ("lora_down.weight", "lora_up.weight"),
"OneTrainer": ("lora_down.weight", "lora_up.weight"),
          "SimpleTuner": ("lora_down.weight", "lora_up.weight")}  # fmt: skip
_LAYERS = 6


def run(quick: bool):
    """Compare all cells and write the results file of this ComfyUI."""
    host.prepare()
    import comfyui_version

    numbers = {}
    for network in NETWORKS:
        numbers |= compare(network)
    for network in ENCODERS:
        numbers |= compare_text(network)
    wrong = sum(1 for one in numbers.values() if one["value"] > 1e-3)
    what = "cells where a weight is missing or dW differs by more than 1e-3"
    numbers["cells that differ"] = results.number(float(wrong), len(numbers), "cells", what)
    name = f"weights_lora_names_{comfyui_version.__version__.replace('.', '_')}"
    return results.write(name, "python run.py study weights names", SEED, ASSETS, numbers)


def compare(network: str, kinds=KINDS) -> dict[str, dict]:
    """The cells of one network: the largest relative error of dW over all weights, 1 where one is
    missing.
    """
    patcher, cells = checkpoint(network), {}
    names = schemes(patcher)
    for scheme, stems in names.items():
        down, up = _PARTS.get(scheme, ("lora_A.weight", "lora_B.weight"))
        file = {}
        for seed, (stem, shape) in enumerate(stems.items()):
            file |= {
                f"{stem}.{part}": value
                for part, value in adapter("LoRA", shape, seed, down, up).items()
            }
        cells |= _cells(patcher, file, f"{network}, {scheme}")
    stems = names["ComfyUI, AI Toolkit"]
    for kind in kinds:
        file, count = {}, {}
        for seed, (stem, shape) in enumerate(stems.items()):
            made = adapter(kind, shape, seed) if count.get(len(shape), 0) < _LAYERS else None
            if made:
                count[len(shape)] = count.get(len(shape), 0) + 1
                file |= {f"{stem}.{part}": value for part, value in made.items()}
        if file:
            cells |= _cells(patcher, file, f"{network}, {kind}")
    return cells


def compare_text(network: str) -> dict[str, dict]:
    """The same of a network's text encoders, by scheme, in files that hold the network, too."""
    import comfy.lora
    import comfy.sd

    reader, targets = host.pack("nodes.common.lora_reader"), host.pack("nodes.host.lora_targets")
    writer, patches = (
        host.pack("nodes.weights.lora_writer"),
        host.pack("nodes.weights.lora_intervals_comfy"),
    )
    clip, cells, model = text_encoders(network), {}, checkpoint(network)
    beside = schemes(model)["ComfyUI, AI Toolkit"]
    table = comfy.lora.model_lora_keys_clip(clip.cond_stage_model, {})
    for scheme, stems in _by_scheme(clip.patcher, table, TEXT_SCHEMES).items():
        down, up = (
            ("lora_A.weight", "lora_B.weight")
            if scheme == "ComfyUI"
            else ("lora_down.weight", "lora_up.weight")
        )
        file = {}
        for seed, (stem, shape) in enumerate({**stems, **beside}.items()):
            file |= {
                f"{stem}.{part}": value
                for part, value in adapter("LoRA", shape, seed, down, up).items()
            }

        def stock(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return updates(comfy.sd.load_lora_for_models(None, clip, tensors, 0, 1.0)[1].patcher)

        wanted, lora = stock(file), reader.parse_tensors(file)
        fit = targets.fit(clip.patcher, targets.sizes_of(lora.text), lora.stems, of_text=True)
        applied = patches.apply_to_text(clip, patches.adapters(lora.text, fit.targets), 1.0)
        layers = {name: lora.layers[name] for name in lora.layers} | dict(lora.text)
        exported = writer.to_tensors(layers, writer.file_stems(layers, lora.stems))
        found = {"W2W Apply": updates(applied.patcher), "export, then Load LoRA": stock(exported)}
        for path, made in found.items():
            what = (
                f"largest over {len(wanted)} weights of text encoders that Load LoRA changes by "
                "the file"
            )
            error = results.number(_error(made, wanted), len(wanted), "relative error of dW", what)
            cells[f"{network}, text encoders, {scheme}: {path}"] = error
    return cells


def _cells(patcher, file: dict[str, torch.Tensor], cell: str) -> dict[str, dict]:
    reader, targets = host.pack("nodes.common.lora_reader"), host.pack("nodes.host.lora_targets")
    writer, patches = (
        host.pack("nodes.weights.lora_writer"),
        host.pack("nodes.weights.lora_intervals_comfy"),
    )
    adapters = host.pack("nodes.host.adapter_updates").ComfyAdapters(patcher)
    wanted = stock_updates(patcher, file)
    lora = reader.parse_tensors(file, adapters=adapters)
    layers = {name: lora.layers[name] for name in lora.layers}
    fit = targets.fit(patcher, targets.sizes_of(layers), lora.stems)
    changes = patches.adapters(layers, fit.targets)
    applied = patches.apply_changes(patcher, changes, 1.0, 0.0, 1.0)
    exported = writer.to_tensors(layers, writer.file_stems(layers, lora.stems))
    found = {
        "W2W Apply": updates(applied),
        "export, then Load LoRA": stock_updates(patcher, exported),
    }
    return {
        f"{cell}: {path}": results.number(
            _error(made, wanted), len(wanted), "relative error of dW",
            f"largest over {len(wanted)} weights that Load LoRA changes by the file; {RANK} is the "
            "rank",
        )
        for path, made in found.items()
    }  # fmt: skip


def _error(made: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    if missing := set(wanted) - set(made):
        print(f"  missing: {sorted(missing)[:3]}")
        return 1.0
    return max(
        float((made[key] - wanted[key]).norm() / wanted[key].norm().clamp_min(1e-30))
        for key in wanted
    )


def checkpoint(network: str):
    """A MODEL of random weights."""
    import comfy.model_patcher
    import comfy.supported_models

    family, config = NETWORKS[network]
    if network == "Flux":  # newer ComfyUI asks for what older does not know
        from comfy.ldm.flux.model import FluxParams

        known = {field.name for field in dataclasses.fields(FluxParams)}
        config = {name: [] for name in ("txt_ids_dims",) if name in known} | config
    made = getattr(comfy.supported_models, family)(dict(config))
    made.set_inference_dtype(torch.float32, None)
    with torch.inference_mode(False), torch.no_grad():
        model = made.get_model({}, device="cpu")
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(draw(seed, *parameter.shape))
    return comfy.model_patcher.ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))


def schemes(patcher) -> dict[str, dict[str, tuple[int, ...]]]:
    """For each scheme the names of all matrices, one a weight or part of it, with their shapes."""
    import comfy.lora

    return _by_scheme(patcher, comfy.lora.model_lora_keys_unet(patcher.model, {}), SCHEMES)


def _by_scheme(patcher, table: dict, starts: dict) -> dict[str, dict[str, tuple[int, ...]]]:
    weights, found = patcher.model.state_dict(), {}
    for name, target in table.items():
        key, part = (target, None) if isinstance(target, str) else (target[0], target[1])
        if key not in weights or weights[key].ndim < 2 or not key.endswith(".weight"):
            continue
        shape = list(weights[key].shape)
        if part is not None:
            shape[part[0]] = part[2]
        scheme = next((one for one, start in starts.items() if name.startswith(start)), None)
        if scheme is not None:
            found.setdefault(scheme, {})[key, part] = name, tuple(shape)
    return {scheme: dict(names.values()) for scheme, names in found.items()}


def text_encoders(network: str):
    """What Load LoRA needs of a CLIP: the encoders of a network, narrow, with random weights."""
    import comfy.clip_model
    import comfy.model_patcher
    import comfy.ops
    import comfy.text_encoders.t5

    model = torch.nn.Module()
    with torch.inference_mode(False), torch.no_grad():
        for name in ENCODERS[network]:
            kind, config = (
                (comfy.text_encoders.t5.T5, _T5)
                if name == "t5xxl"
                else (comfy.clip_model.CLIPTextModel, _CLIP)
            )
            part = torch.nn.Module()
            part.transformer = kind(config, torch.float32, "cpu", comfy.ops.manual_cast)
            model.add_module(name, part)
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(draw(seed, *parameter.shape))
    patcher = comfy.model_patcher.ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))
    return _clip(model, patcher)


def _clip(model, patcher):
    return SimpleNamespace(
        cond_stage_model=model,
        patcher=patcher,
        clone=lambda: _clip(model, patcher.clone()),
        add_patches=patcher.add_patches,
    )
