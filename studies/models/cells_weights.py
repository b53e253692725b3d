"""Cells of the weights family: what each node must do on a network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from .subject import Subject, demand, relative

_MEMBERS = 3


def _layer_names(patcher: Any) -> dict[str, tuple[int, ...]]:
    """The names of all matrices in ComfyUI's own scheme, or else the first that it knows, with
    their shapes.
    """
    import comfy.lora

    weights = patcher.model.state_dict()
    names: dict[tuple, tuple[str, tuple[int, ...]]] = {}
    for name, target in comfy.lora.model_lora_keys_unet(patcher.model, {}).items():
        key, part = (target, None) if isinstance(target, str) else (target[0], target[1])
        if key not in weights or weights[key].ndim != 2 or not key.endswith(".weight"):
            continue
        shape = list(weights[key].shape)
        if part is not None:
            shape[part[0]] = part[2]
        if (key, part) not in names or name.startswith("diffusion_model."):
            names[key, part] = (name, tuple(shape))
    plain = {target: item for target, item in names.items() if target[1] is None}
    return dict(plain.values())


def _member(subject: Subject, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in _layer_names(subject.model).items():
        down = torch.randn(2, math.prod(shape[1:]), generator=generator)
        up = torch.randn(shape[0], 2, generator=generator)
        tensors[f"{name}.lora_A.weight"] = down * 0.1
        tensors[f"{name}.lora_B.weight"] = up * 0.1
    return tensors


def _space(subject: Subject):
    def build():
        import folder_paths
        from safetensors.torch import save_file

        name = f"members_{subject.configuration.name}"
        folder = subject.base / "models" / "loras" / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(_MEMBERS):
            save_file(_member(subject, seed), str(folder / f"p{seed}.safetensors"))
        folder_paths.filename_list_cache.clear()
        return subject.run(
            "W2WBuildSpace",
            folder=name,
            filename=f"space_{subject.configuration.name}",
            norm="keep",
            form="as_trained",
            storage="float32",
            model=subject.model,
        )[0]

    return subject.once("space", build)


def _point(subject: Subject):
    point = subject.run(
        "W2WSample", space=_space(subject), source="member", member_name=f"p{_MEMBERS - 1}"
    )[0]
    return point[0] if isinstance(point, list) else point


def _loaded(subject: Subject, lora: dict) -> torch.Tensor:
    import comfy.sd

    return subject.sample(comfy.sd.load_lora_for_models(subject.model, None, lora, 1.0, 0)[0])


def _stock(subject: Subject) -> torch.Tensor:
    return subject.once("member", lambda: _loaded(subject, _member(subject, _MEMBERS - 1)))


def build_space(subject: Subject) -> str:
    """The members' coefficients rebuild them."""
    space = _space(subject)
    demand(space.coefficients.shape[0] == _MEMBERS, "A member is missing.")
    layers = _point(subject).layers()
    expected = _member(subject, _MEMBERS - 1)
    demand(2 * len(layers) == len(expected), f"{len(layers)} of {len(expected) // 2} layers.")
    return f"{len(layers)} layers"


def apply_point(subject: Subject) -> str:
    """Strength 0 is stock, strength 1 is Load LoRA."""
    point = _point(subject)
    subject.same(subject.run("W2WApply", model=subject.model, point=point, strength=0.0)[0])
    model = subject.run("W2WApply", model=subject.model, point=point, strength=1.0)[0]
    error = relative(subject.changed(model), _stock(subject), subject.plain)
    demand(error < 1e-3, f"It differs from Load LoRA by {error:.2g} of the change.")
    return f"equals Load LoRA within {error:.1g}"


def export_point(subject: Subject) -> str:
    """The exported file through Load LoRA is the member, with and without the MODEL."""
    point = _point(subject)
    errors = []
    for more in ({"model": subject.model}, {}):
        lora = subject.run("W2WToLoRA", point=point, precision="fp32", filename_prefix="", **more)[
            0
        ]
        errors.append(relative(_loaded(subject, lora), _stock(subject), subject.plain))
    demand(max(errors) < 1e-3, f"The file differs by {max(errors):.2g} of the change.")
    return f"equals the member within {max(errors):.1g}"


def guidance(subject: Subject) -> str:
    """Strength 0 is stock, another one acts."""
    point = _point(subject)

    def guided(strength: float):
        return subject.run(
            "W2WGuidance", model=subject.model, point=point, identity_strength=strength
        )[0]

    subject.same(guided(0.0))
    subject.changed(guided(1.0))
    return "strength 0 bit-equal"


def guider(subject: Subject) -> str:
    """A guider is made."""
    made = subject.run(
        "W2WGuider",
        model=subject.model,
        positive=subject.positive,
        negative=subject.negative,
        point=_point(subject),
    )[0]
    demand(hasattr(made, "sample"), "It is no guider.")
    return "guider"


def invert(subject: Subject) -> str:
    """The coefficients move, and stay finite."""
    point = subject.run(
        "W2WInvert",
        model=subject.model,
        space=_space(subject),
        latent=subject.latent,
        positive=subject.positive,
        steps=2,
        noise_samples=1,
        precision="fp32",
        preview_interval=0,
    )[0]
    coefficients = point.coefficients
    demand(bool(torch.isfinite(coefficients).all()), "A coefficient is not finite.")
    demand(float(coefficients.norm()) > 0, "No coefficient moves.")
    return "coefficients move"


def train_space(subject: Subject) -> str:
    """Default layers are trained, and a member of the space acts."""
    import folder_paths
    from PIL import Image

    name = f"people_{subject.configuration.name}"
    for person in ("one", "two"):
        folder = Path(folder_paths.get_input_directory()) / name / person
        folder.mkdir(parents=True, exist_ok=True)
        noise = Image.effect_noise((subject.side, subject.side), 40 + len(person))
        noise.convert("RGB").save(folder / "0.png")
    space = subject.run(
        "W2WTrainSpace",
        model=subject.model,
        clip=subject.text_encoder,
        vae=subject.vae,
        folder=name,
        steps=2,
        components=1,
        rank=2,
        members_per_step=2,
        images_per_member=1,
        batch_size=1,
        resolution=subject.side,
        precision="fp32",
        preview_interval=0,
        learning_rate=0.01,
        checkpoint_name="",
    )[0]
    point = subject.run("W2WSample", space=space, source="member", member_name="one")[0]
    point = point[0] if isinstance(point, list) else point
    subject.changed(subject.run("W2WApply", model=subject.model, point=point, strength=5.0)[0])
    return f"{len(space.layout.slots)} layers"


def train_slider(subject: Subject) -> str:
    """A slider from two phrases acts, and stock's Load LoRA reads the same change from it."""
    import comfy.sd

    models, loras = subject.run(
        "TrainSlider",
        model=subject.model,
        clip=subject.text_encoder,
        vae=subject.vae,
        latent=subject.empty,
        increase="old, wrinkled",
        decrease="young",
        base_prompt="a person",
        rank=2,
        steps=2,
        images=1,
        sampling_steps=2,
        batch_size=1,
        cfg=1.0,
        precision="fp32",
        preview_interval=1,
        learning_rate=0.01,
        checkpoint_name="",
    )[:2]
    slid = subject.changed(models[0])
    loaded, _ = comfy.sd.load_lora_for_models(subject.model, None, loras[0], 1.0, 0.0)
    difference = float((subject.sample(loaded) - slid).abs().max())
    effect = float((slid - subject.plain).abs().max())
    demand(
        difference <= 1e-3 * effect,
        f"Load LoRA samples {difference:.2g} away from the slider, whose effect is {effect:.2g}.",
    )
    return f"{len(models[0].patches)} weights"


CELLS = {
    "W2WBuildSpace": build_space,
    "W2WApply": apply_point,
    "W2WToLoRA": export_point,
    "W2WGuidance": guidance,
    "W2WGuider": guider,
    "W2WInvert": invert,
    "W2WTrainSpace": train_space,
    "TrainSlider": train_slider,
}
