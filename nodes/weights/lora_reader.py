"""LoRA files as low-rank factors by layer, whichever trainer wrote them.

W' = W + scale * up @ down, with scale = alpha / rank (or alpha / sqrt(rank) where a PEFT configuration sets
rank-stabilized LoRA), and 1 where neither the file nor its configuration has an alpha, as ComfyUI reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..common.lora_keys import ALPHA, DOWN, FULL, UP, LoraKey, parse

_PICKLES = {".pt", ".pth", ".bin", ".ckpt"}
#: Files that may hold a LoRA.
SUFFIXES = (".safetensors", ".sft", *sorted(_PICKLES))
_PEFT_STEM = "adapter_model"
#: Among names of LoRA files: no file.
NONE = "none"
_NO_LORA = "holds no LoRA of a diffusion model: give a LoRA file of kohya, diffusers, PEFT or ComfyUI."


class MissingPeftError(RuntimeError):
    """A PEFT adapter cannot be read without the package peft."""


@dataclass(frozen=True)
class Factors:
    """The change of one layer: ``down`` (rank, in, ...), ``up`` (out, rank, ...), any float dtype, and their scale."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float = 1.0

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    def matrices(self, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
        """``up`` (out, rank) with the scale in it, and ``down`` (rank, in); a kernel's window counts as inputs."""
        return self.scale * self.up.to(dtype).flatten(1), self.down.to(dtype).flatten(1)

    def squared_norm(self) -> float:
        """|scale * up @ down|^2 without making the product."""
        up, down = self.matrices(torch.float64)
        return float(((up.T @ up) * (down @ down.T)).sum())


@dataclass(frozen=True)
class Lora:
    """Contents of a LoRA file: factors of the diffusion network by layer, and the squared norms of what is left out.

    ``dropped`` by kind: "text encoder" (low-rank factors there), "full differences" (biases and norms).
    """

    layers: dict[str, Factors]
    dropped: dict[str, float] = field(default_factory=dict)


def read(path: Path) -> Lora:
    """Read a LoRA file, or a PEFT adapter folder; no pickled code is executed.

    Raises ValueError with one sentence that names the file when it is no LoRA, of another kind, or not finite.
    """
    weights = _peft_weights(path) if path.is_dir() else path
    name = weights.parent.name if weights.name.startswith(_PEFT_STEM) else path.name
    try:
        tensors, metadata = _load(weights)
        config = {**_peft_config(weights), **_embedded_config(metadata)}
    except MissingPeftError:
        raise
    except Exception as error:  # whatever a damaged file makes its parser raise
        reason = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
        raise ValueError(f"{name} cannot be read ({reason}): take it out or download it again.") from None
    try:
        return parse_tensors(tensors, config)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def resolve_lora(
    name: str, wire: Mapping[str, torch.Tensor] | None, path_of: Callable[[str], Path]
) -> tuple[Lora, str]:
    """The LoRA on a wire, else that of the file of this name, and its name; ValueError when there is neither."""
    if wire is not None:
        try:
            return parse_tensors(wire), "LoRA"
        except ValueError as error:
            raise ValueError(f"The LoRA on the wire {error}") from None
    if name == NONE:
        raise ValueError("There is no LoRA: choose a file, or connect one.")
    path = path_of(name)
    return read(path), path.stem


#: The shape of a layer's inputs, such as (320,) or (320, 3, 3), and of its outputs, such as (320,) or (320, 1, 1).
Shape = tuple[tuple[int, ...], tuple[int, ...]]


def read_shapes(path: Path) -> dict[str, Shape]:
    """The shape of every layer that a .safetensors LoRA changes, from its header alone; other files are read.

    Raises ValueError as ``read`` does, as far as the header shows it.
    """
    if path.is_dir() or path.suffix.lower() in _PICKLES:
        return layer_shapes(read(path))
    from safetensors import SafetensorError, safe_open

    found: dict[str, dict[str, tuple[int, ...]]] = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118  (safe_open is not a mapping)
                name = _parse_key(key)
                if name and not name.text and name.part in (DOWN, UP):
                    found.setdefault(name.layer, {})[name.part] = tuple(file.get_slice(key).get_shape())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path.name} cannot be read ({error}): take it out or download it again.") from None
    except ValueError as error:
        raise ValueError(f"{path.name} {error}") from None
    if not found:
        raise ValueError(f"{path.name} {_NO_LORA}")
    return {layer: _shape(both[DOWN], both[UP]) for layer, both in found.items() if len(both) == 2}


def layer_shapes(lora: Lora) -> dict[str, Shape]:
    """The shape of every layer."""
    return {name: _shape(factors.down.shape, factors.up.shape) for name, factors in lora.layers.items()}


def trim_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without ones at its end: a linear layer and a convolution of one pixel are the same."""
    shape = tuple(shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def parse_tensors(tensors: Mapping[str, torch.Tensor], config: Mapping | None = None) -> Lora:
    """Tensors by the keys of a LoRA file as factors; ``config`` is that of PEFT (r, lora_alpha, use_rslora, ...).

    Raises ValueError with the end of a sentence ("holds no LoRA ...") when they are not supported.
    """
    config, parts, text, full = config or {}, {}, {}, 0.0
    _check_config(config)
    for key, value in tensors.items():
        found = _parse_key(key)
        if found is None:
            continue
        if found.part in FULL:
            full += float(value.double().square().sum())
        else:
            (text if found.text else parts).setdefault(found.layer, {})[found.part] = value
    layers = _factors(parts, config)
    if not layers:
        raise ValueError(_NO_LORA)
    _check_finite(layers)
    dropped = {
        "text encoder": sum(factors.squared_norm() for factors in _factors(text, config).values()),
        "full differences": full,
    }
    return Lora(layers, {kind: norm for kind, norm in dropped.items() if norm})


def _parse_key(key: str) -> LoraKey | None:
    """The meaning of a key, None when it is not a LoRA's; raises ValueError for adapters that are not a plain LoRA."""
    found = parse(key)
    if found is None and "lora" in key.lower():
        raise ValueError(f"has unknown keys, such as {key}: convert it to kohya's form first.")
    if found is not None and found.part not in (DOWN, UP, ALPHA, *FULL):
        raise ValueError(f"is a {found.part}, not a plain LoRA: convert it to a LoRA first.")
    return found


def _factors(parts: dict[str, dict], config: Mapping) -> dict[str, Factors]:
    layers = {}
    for layer, found in parts.items():
        if DOWN not in found and UP not in found:
            continue
        if DOWN not in found or UP not in found:
            raise ValueError(f"has only one factor of {layer}: the file is cut short, download it again.")
        down, up = found[DOWN], found[UP]
        if min(down.ndim, up.ndim) < 2 or down.shape[0] != up.shape[1]:
            raise ValueError(f"has factors of {layer} that do not fit ({tuple(up.shape)} and {tuple(down.shape)}).")
        layers[layer] = Factors(down, up, _scale(layer, found.get(ALPHA), down.shape[0], config))
    return layers


def _scale(layer: str, alpha: torch.Tensor | None, rank: int, config: Mapping) -> float:
    if alpha is None:
        patterns = config.get("alpha_pattern") or {}
        alpha = patterns[_pattern(patterns, layer)] if _pattern(patterns, layer) else config.get("lora_alpha")
    if alpha is None:
        return 1.0
    return float(alpha) / (rank**0.5 if config.get("use_rslora") else rank)


def _check_config(config: Mapping) -> None:
    if config.get("use_dora"):
        raise ValueError("is a DoRA, not a plain LoRA: convert it to a LoRA first.")


def _check_finite(layers: dict[str, Factors]) -> None:
    for layer, factors in layers.items():
        numbers = (factors.down.float(), factors.up.float(), torch.tensor(factors.scale))
        if not all(bool(torch.isfinite(part).all()) for part in numbers):
            raise ValueError(f"holds NaN or infinity in {layer}: take it out or train it again.")


def _load(path: Path) -> tuple[dict[str, torch.Tensor], dict]:
    from safetensors import SafetensorError, safe_open

    if path.suffix.lower() in _PICKLES:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file makes the unpickler raise nearly anything
            raise ValueError(f"it holds more than tensors, or none: {type(error).__name__}") from None
        state = state.get("state_dict", state) if isinstance(state, dict) else None
        if not isinstance(state, dict):
            raise ValueError("not a table of tensors")
        return {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}, {}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _peft_weights(folder: Path) -> Path:
    """The weights of a PEFT folder, such as NAME/unet/adapter_model.safetensors."""
    for inside in (".", "unet", "transformer"):
        if (path := folder / inside / "adapter_model.safetensors").is_file():
            return path
    raise ValueError(f"{folder.name} is a folder without adapter_model.safetensors: give LoRA files.")


def _peft_config(path: Path) -> dict:
    """The configuration beside the weights of a PEFT adapter; empty for other files."""
    if not path.name.startswith(_PEFT_STEM) or not (path.parent / "adapter_config.json").is_file():
        return {}
    return _peft().PeftConfig.from_pretrained(str(path.parent)).to_dict()


def _pattern(patterns: Mapping, layer: str) -> str | None:
    """The key of PEFT's ``alpha_pattern`` that names a layer."""
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", layer)), None)


def _peft():
    try:
        import peft
    except ImportError as error:
        raise MissingPeftError("A PEFT adapter folder needs the package peft: pip install peft") from error
    return peft


def _embedded_config(metadata: Mapping[str, str]) -> dict:
    """The configuration that newer diffusers writes into the header of a LoRA file."""
    try:
        about = json.loads(metadata.get("lora_adapter_metadata", "{}"))
    except ValueError:
        return {}
    of_network = ((*key.partition("."), value) for key, value in about.items())
    return {name: value for owner, _, name, value in of_network if owner in ("unet", "transformer")}


def _shape(down, up) -> Shape:
    return tuple(down[1:]), (up[0], *up[2:])
