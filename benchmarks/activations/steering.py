"""What Activation Steering and Sparse Feature Steering add to an evaluation: operations and bytes,
at full size.

The network runs on PyTorch's meta device, which knows shapes and no values, so the counts are exact
and need neither memory nor a quiet machine. Two rows in half precision, positive and negative
prompt, of which the positive is steered.
"""

from __future__ import annotations

from contextlib import nullcontext
from fnmatch import fnmatch
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from studies.common import host, results

#: Name, blueprint of the network, and the side of its latent.
NETWORKS = (("SD1.5, 512 pixels", "sd15", 64), ("SDXL, 1,024 pixels", "sdxl", 128))
STEERED = ("up-level1-repeat0-vit-out", "*-vit-out")
#: A published size of autoencoders for SDXL (arXiv 2410.22366).
FEATURES, ACTIVE = 5120, 10


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write, and the elements that they write; views do
    neither.
    """

    def __init__(self):
        super().__init__()
        self.bytes = self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        aliases = [one.alias_info for one in func._schema.returns]
        if not any(alias is not None and not alias.is_write for alias in aliases):
            given, made = (
                [one for one in tree_leaves(part) if isinstance(one, torch.Tensor)]
                for part in (args, result)
            )
            self.bytes += sum(one.nbytes for one in (*given, *made))
            self.elements += sum(one.numel() for one in made)
        return result


def measure(quick: bool) -> dict[str, dict]:
    """Added operations and bytes over those of the evaluation, for one ID and for the output of
    every transformer.
    """
    numbers = {}
    for name, blueprint, side in NETWORKS[: 1 if quick else None]:
        meta = host.pack("nodes.activations.meta_networks_comfy")
        network, config = (
            meta.network("architecture", blueprint).half(),
            meta.ARCHITECTURES[blueprint],
        )
        operations, plain = count(network, config, side, [], None)
        catalog = host.pack("nodes.activations.catalog_unet").catalog(network)
        for label, pattern, edit_of in edits():
            specs = [one for one in catalog if fnmatch(one.id, pattern)]
            multiplied, steered = count(network, config, side, specs, edit_of(specs))
            label = f"{name}, {len(specs)} {label}"
            about = f"goal: below .01; {pattern}, of one evaluation of two rows in half precision"
            numbers[f"{label}: operations added"] = results.number(
                (multiplied - operations + steered.elements - plain.elements) / operations,
                1,
                "fraction",
                f"{about}; each element that is written counts as one, against those of products "
                "and convolutions",
            )
            numbers[f"{label}: bytes added"] = results.number(
                (steered.bytes - plain.bytes) / plain.bytes, 1, "fraction", about
            )
    return numbers


def edits():
    """Of every kind of steering: its name, the pattern of its IDs, and the edit of their specs."""
    steering, sparse = (
        host.pack(f"nodes.activations.{name}") for name in ("steering", "sparse_autoencoder")
    )

    def along(specs: list):
        direction = steering.SteeringDirection(
            {one.id: torch.ones(one.channels, device="meta") for one in specs}, ""
        )
        return steering.steer(direction, steering.SteeringSettings(strength=1.0))

    def by_feature(specs: list, mode: str):
        (spec,) = specs
        sizes = {"encoder": (FEATURES, spec.channels), "decoder": (FEATURES, spec.channels)}
        sizes |= {"pre_bias": (spec.channels,), "latent_bias": (FEATURES,), "usual": (FEATURES,)}
        given = {name: torch.zeros(size) for name, size in sizes.items()}
        return sparse.steer_features(
            sparse.SparseAutoencoder(spec.id, ACTIVE, **given), {0: 1.0}, mode, None
        )

    for pattern in STEERED:
        yield "steered", pattern, along
    for mode in ("add", "scale"):
        yield f"steered by a sparse feature, {mode}", STEERED[0], partial(by_feature, mode=mode)


def count(
    network: torch.nn.Module, config: dict, side: int, specs: list, edit
) -> tuple[int, Traffic]:
    """Operations of products and convolutions of one evaluation, and all its traffic, with an edit
    of these IDs.
    """
    hooks = host.pack("nodes.host.hooks")
    call_edit, about = (
        host.pack("nodes.activations.activation_edit").CallEdit,
        host.pack("nodes.common.network_call"),
    )
    from comfy.ldm.modules.attention import attention_pytorch

    half = {"dtype": torch.float16, "device": "meta"}
    latent = torch.empty(2, network.in_channels, side, side, **half)
    given = {
        "timesteps": torch.empty(2, device="meta"),
        "context": torch.empty(2, 77, config["context_dim"], **half),
        "y": torch.empty(2, config["adm_in_channels"], **half)
        if config.get("adm_in_channels")
        else None,
        # ComfyUI's own choice of attention reads how much memory is free, of which the meta device
        # has none.
        "transformer_options": {
            "optimized_attention_override": lambda _, *q, **kw: attention_pytorch(*q, **kw)
        },
    }
    steered = nullcontext()
    if specs:
        parts = [
            about.Part(role=role, rows=slice(row, row + 1), area=about.WHOLE)
            for row, role in enumerate(("positive", "negative"))
        ]
        call = about.Call(network=network, parts=tuple(parts), rows=2, sigma=1.0, schedule=())
        steered = hooks.forward_hooks(
            network, call_edit(specs, edit, lambda part: part.positive, call).receivers()
        )
    flops, traffic = FlopCounterMode(display=False), Traffic()
    with steered, flops, traffic, torch.no_grad():
        network(latent, **given)
    return flops.get_total_flops(), traffic
