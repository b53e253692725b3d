"""Small adapters of every kind that LoRA files hold, by the names and parts that trainers give
them, from a seed.
"""

from __future__ import annotations

import torch

RANK = 4
#: The kinds that `adapter` makes; Tucker and the kernels of BOFT are of convolutions and of some
#: widths alone.
KINDS = (
    "LoRA",(
        "LoRA without "
        "alpha"
    ), "float16", "float8", "DoRA", "LoHa", "LoKr", "OFT", "BOFT", "GLoRA", "diff", "set",
    "Tucker",
)  # fmt: skip


def draw(seed: int, *shape: int) -> torch.Tensor:
    """Normal numbers of deviation 0.1."""
    return 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def adapter(
    kind: str, shape: tuple[int, ...], seed: int, down="lora_down.weight", up="lora_up.weight"
) -> dict | None:
    """The tensors by part of one layer of a shape (out, in, ...); None where the kind has no such
    layer.
    """
    outputs, inputs, window = shape[0], shape[1], tuple(shape[2:])
    ones = (1,) * len(window)
    if kind in ("LoRA", "LoRA without alpha", "float16", "float8", "DoRA"):
        made = {down: draw(seed, RANK, inputs, *window), up: draw(seed + 1, outputs, RANK, *ones)}
        if kind != "LoRA without alpha":
            made["alpha"] = torch.tensor(RANK / 2)
        if kind == "DoRA":
            made["dora_scale"] = 1 + draw(seed + 2, outputs, 1, *ones).abs()
        dtype = {"float16": torch.float16, "float8": torch.float8_e4m3fn}.get(kind, torch.float32)
        return {name: value if name == "alpha" else value.to(dtype) for name, value in made.items()}
    if kind == "Tucker":
        if len(window) != 2 or window == ones:
            return None
        return {
            "lora_down.weight": draw(seed, RANK, inputs, *ones),
            "lora_mid.weight": draw(seed + 1, RANK, RANK, *window),
            "lora_up.weight": draw(seed + 2, outputs, RANK, *ones),
            "alpha": torch.tensor(RANK / 2),
        }
    if kind == "LoHa":
        width = inputs * torch.Size(window).numel()
        sides = {"a": (outputs, RANK), "b": (RANK, width)}
        made = {
            f"hada_w{i}_{side}": 5 * draw(seed + i, *size)
            for i in (1, 2)
            for side, size in sides.items()
        }
        return {**made, "alpha": torch.tensor(RANK / 2)}
    if kind == "LoKr":
        if outputs % 4 or inputs % 4:
            return None
        second = draw(seed + 1, outputs // 4, inputs // 4, *window)
        return {"lokr_w1": draw(seed, 4, 4), "lokr_w2": second, "alpha": torch.tensor(1.0)}
    if kind == "OFT":
        return None if outputs % 4 else {"oft_blocks": draw(seed, 4, outputs // 4, outputs // 4)}
    if kind == "BOFT":
        return (
            None
            if outputs % 16
            else {"oft_blocks": draw(seed, 2, outputs // 8, 8, 8), "alpha": torch.tensor(0.0)}
        )
    if kind == "GLoRA":
        if window:
            return None
        sizes = {
            "a1": (inputs, RANK),
            "a2": (RANK, inputs),
            "b1": (outputs, RANK),
            "b2": (RANK, inputs),
        }
        made = {
            f"{name}.weight": draw(seed + i, *size) for i, (name, size) in enumerate(sizes.items())
        }
        return {**made, "alpha": torch.tensor(RANK / 2)}
    return {"diff" if kind == "diff" else "set_weight": draw(seed, *shape)}


def stock_updates(patcher, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """dW of each weight of a MODEL under ComfyUI's own loading of a LoRA file at strength 1."""
    import comfy.lora
    import comfy.sd

    loaded = comfy.sd.load_lora_for_models(patcher, None, tensors, 1.0, 0)[0]
    return updates(loaded)


def updates(patcher) -> dict[str, torch.Tensor]:
    """dW of each weight that the patches of a MODEL change."""
    import comfy.lora

    weights, found = patcher.model.state_dict(), {}
    for key, patches in patcher.patches.items():
        weight = weights[key].detach().clone().float()
        original = {key: [(weight.clone(), lambda one, **_: one)]}
        found[key] = (
            comfy.lora.calculate_weight(patches, weight.clone(), key, original_weights=original)
            - weight
        )
    return found
