"""LoRA files as low-rank factors by layer, whichever trainer wrote them.

W' = W + scale * up @ down, with scale = alpha / rank (or alpha / sqrt(rank) where a PEFT
configuration sets rank-stabilized LoRA), and 1 where neither the file nor its configuration has an
alpha, as ComfyUI reads it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from . import peft_files
from .headers import HeaderError, unreadable
from .lora_keys import ALPHA, DOWN, FULL, RESHAPE, UP, LoraKey, module_name, parse
from .peft_files import AdapterConfig, adapter_config
from .safetensors_files import NUMBERS, open_tensors

_PICKLES = {".pt", ".pth", ".bin", ".ckpt"}
#: Files that may hold a LoRA.
SUFFIXES = (".safetensors", ".sft", *sorted(_PICKLES))
#: Among names of LoRA files: no file.
NONE = "none"
_COMFYUI_ALONE = "it is read inside ComfyUI alone, by its own adapters."
_NO_LORA = (
    "holds no LoRA of a diffusion model: give a LoRA file of kohya, diffusers, PEFT or ComfyUI."
)


#: The shape of a layer's inputs, such as (320,) or (320, 3, 3), and of its outputs, such as (320,)
#: or (320, 1, 1).
Shape = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Factors:
    """The change of one layer: ``down`` (rank, in, ...), ``up`` (out, rank, ...), any float dtype,
    and their scale.
    """

    down: torch.Tensor
    up: torch.Tensor
    scale: float = 1.0

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    def matrices(self, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
        """``up`` (out, rank) with the scale in it, and ``down`` (rank, in); a kernel's window
        counts as inputs.
        """
        return self.scale * self.up.to(dtype).flatten(1), self.down.to(dtype).flatten(1)

    def squared_norm(self) -> float:
        """|scale * up @ down|^2 without making the product."""
        up, down = self.matrices(torch.float64)
        return float(((up.T @ up) * (down @ down.T)).sum())


class AdapterReader(Protocol):
    """What reads adapters that are not a plain LoRA: ComfyUI's own, in
    nodes/host/adapter_updates.py.
    """

    def shape(self, layer: str, tensors: Mapping[str, tuple[int, ...]]) -> Shape | None:
        """The layer's shape from those of its tensors; None where only the base model's weight
        shows it.
        """

    def update(self, layer: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """dW float32 of the layer (out, in, ...)."""


class Layers(Mapping):
    """Factors by layer, made when they are used: those of an adapter that is not a plain LoRA are
    as large as dW.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Factors]]):
        self._makers = makers

    def __getitem__(self, layer: str) -> Factors:
        return self._makers[layer]()

    def __iter__(self):
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True)
class LayerParts:
    """What a file holds of one layer: its name there, and tensors (or their shapes) by part.

    Parts are named as ComfyUI's adapters name them ("hada_w1_a", "dora_scale", "diff_b", ...);
    factors and alpha are DOWN, UP and ALPHA.
    """

    stem: str
    kind: str
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FileParts:
    """All layers of a file by their canonical names, and the configuration that goes with it.

    ``layers`` and ``text``: what changes matrices of the network and of text encoders; ``rest``:
    biases and norms.
    """

    layers: dict[str, LayerParts] = field(default_factory=dict)
    text: dict[str, LayerParts] = field(default_factory=dict)
    rest: dict[str, LayerParts] = field(default_factory=dict)
    config: AdapterConfig = field(default_factory=AdapterConfig)

    def scale(self, layer: str, parts: Mapping[str, torch.Tensor]) -> float:
        """The factor of up @ down of a layer: alpha / rank, that of the configuration, or 1 without
        either.
        """
        rank = parts[DOWN].shape[0]
        if (alpha := parts.get(ALPHA)) is not None:
            return float(alpha) / (rank**0.5 if self.config.stabilized else rank)
        stem = next(
            (group[layer].stem for group in (self.layers, self.text) if layer in group), layer
        )
        return self.config.scale(rank, layer, module_name(stem))


@dataclass(frozen=True)
class Lora:
    """Contents of a LoRA file: factors by layer of the diffusion network and of its text encoders.

    ``dropped``: squared norms of what is left out, by kind: "biases and norms". ``stems``: each
    layer's name in the file.
    """

    layers: Mapping[str, Factors]
    text: Mapping[str, Factors] = field(default_factory=dict)
    dropped: dict[str, float] = field(default_factory=dict)
    stems: Mapping[str, str] = field(default_factory=dict)

    def squared_norm(self) -> float:
        """|dW|^2 of all layers."""
        return sum(
            one.squared_norm() for layers in (self.layers, self.text) for one in layers.values()
        )

    def scaled(self, strength: float) -> Lora:
        """The same LoRA at a strength."""

        def times(layers: Mapping[str, Factors], layer: str) -> Factors:
            return replace(layers[layer], scale=strength * layers[layer].scale)

        layers, text = (
            Layers({layer: functools.partial(times, own, layer) for layer in own})
            for own in (self.layers, self.text)
        )
        dropped = {reason: strength**2 * norm for reason, norm in self.dropped.items()}
        return Lora(layers, text, dropped, self.stems)

    def without_text(self) -> Lora:
        """The same with its text encoder layers among what is left out."""
        text = sum(factors.squared_norm() for factors in self.text.values())
        return Lora(
            self.layers,
            {},
            {**self.dropped, **({"text encoder": text} if text else {})},
            self.stems,
        )


def read(
    path: Path, adapters: AdapterReader | None = None, wanted: Callable[[str], bool] | None = None
) -> Lora:
    """Read a LoRA file, or a PEFT adapter folder; no pickled code is executed.

    ``adapters`` reads what is not a plain LoRA. With ``wanted`` only these layers are read, which
    may be none. Raises ValueError with one sentence that names the file when it is no LoRA, of
    another kind, or not finite.
    """
    with contextlib.ExitStack() as stack:
        return keep_open(path, stack, adapters)(wanted)


def read_parts(path: Path) -> FileParts:
    """All that a LoRA file holds of each layer, of every kind, as it is; raises ValueError as
    ``read`` does.
    """
    with contextlib.ExitStack() as stack:
        name = _name_of(path)
        tensors, config = _load(path, stack, [], None)
    try:
        found = _sort(tensors, config)
        for layer, one in [*found.layers.items(), *found.text.items(), *found.rest.items()]:
            _check(layer, one.parts)
    except ValueError as error:
        raise _named(error, name) from None
    return found


def keep_open(
    path: Path, stack: contextlib.ExitStack, adapters: AdapterReader | None = None
) -> Callable[[Callable[[str], bool] | None], Lora]:
    """``read`` of one file, to be called many times with what is wanted: it is opened and its
    header parsed once.

    A .safetensors file stays open, and mapped, until ``stack`` closes; another kind is read again
    at each call.
    """
    opened: list[tuple[Callable, dict]] = []

    def part(wanted: Callable[[str], bool] | None = None) -> Lora:
        tensors, config = _load(path, stack, opened, wanted)
        try:
            return (
                _parse(tensors, config, adapters)
                if wanted
                else parse_tensors(tensors, config, adapters)
            )
        except ValueError as error:
            raise _named(error, _name_of(path)) from None

    return part


def _named(error: ValueError, name: str) -> ValueError:
    """The sentence whose end an error is; that of a header names its file already."""
    return error if isinstance(error, HeaderError) else ValueError(f"{name} {error}")


def _name_of(path: Path) -> str:
    """What errors call a file or an adapter folder."""
    return path.parent.name if path.name.startswith(peft_files.STEM) else path.name


def _load(
    path: Path, stack: contextlib.ExitStack, opened: list, wanted: Callable[[str], bool] | None
) -> tuple[dict[str, torch.Tensor], AdapterConfig]:
    """The tensors of the wanted layers and the configuration; ``opened`` keeps what need not be
    read again.
    """
    try:
        weights = peft_files.weights(path) if path.is_dir() else path
        if not opened:
            tensors_of, metadata = _open(weights, stack)
            embedded = peft_files.embedded_config(metadata, _name_of(path))
            values = {**peft_files.folder_config(weights), **embedded}
            opened.append((tensors_of, adapter_config(values, _name_of(path))))
        tensors_of, config = opened[0] if weights.suffix.lower() not in _PICKLES else opened.pop()
        return tensors_of(wanted), config
    except HeaderError:
        raise
    except Exception as error:  # whatever a damaged file makes its parser raise
        from .failures import is_out_of_memory

        if is_out_of_memory(error):
            raise
        if path.is_file():
            raise unreadable(path, error, "remove it or download it again") from None
        reason = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
        raise ValueError(
            f"{_name_of(path)} cannot be read ({reason}): remove it or download it again."
        ) from None


def resolve_lora(
    name: str,
    wire: Mapping[str, torch.Tensor] | None,
    path_of: Callable[[str], Path],
    adapters: AdapterReader | None = None,
) -> tuple[Lora, str]:
    """The LoRA on a wire, else that of the file of this name, and its name; ValueError when there
    is neither.
    """
    if wire is not None:
        try:
            return parse_tensors(wire, adapters=adapters), "LoRA"
        except ValueError as error:
            raise ValueError(f"The LoRA on the wire {error}") from None
    if name == NONE:
        raise ValueError("There is no LoRA: choose a file, or connect one.")
    path = path_of(name)
    return read(path, adapters), path.stem


@dataclass(frozen=True)
class LoraHeader:
    """What a file says of itself before it is read: the shapes of its layers, and its metadata."""

    shapes: dict[str, Shape]
    text: dict[str, Shape] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    stems: Mapping[str, str] = field(default_factory=dict)


def read_header(path: Path, adapters: AdapterReader | None = None) -> LoraHeader:
    """The header of a .safetensors LoRA; other files are read.

    Raises ValueError as ``read`` does, as far as the header shows it.
    """
    if path.is_dir() or path.suffix.lower() in _PICKLES:
        return header_of(read(path, adapters))
    from safetensors import SafetensorError

    try:
        with open_tensors(path) as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        found = _sort(shapes, AdapterConfig())
        _refuse_without(adapters, found)
        header = LoraHeader(
            _shapes(found.layers, adapters), _shapes(found.text, adapters), metadata, _stems(found)
        )
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error, "remove it or download it again") from None
    except ValueError as error:
        raise _named(error, path.name) from None
    if not header.shapes:
        raise ValueError(f"{path.name} {_NO_LORA}")
    return header


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a .safetensors file; empty for other files, and for those that cannot be
    read.
    """
    from safetensors import SafetensorError

    try:
        with open_tensors(path) as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


def header_of(lora: Lora) -> LoraHeader:
    """The shapes of all layers of a LoRA."""
    shapes, text = (
        {
            name: (tuple(one.down.shape[1:]), (one.up.shape[0], *one.up.shape[2:]))
            for name, one in layers.items()
        }
        for layers in (lora.layers, lora.text)
    )
    return LoraHeader(shapes, text, stems=lora.stems)


def parse_tensors(
    tensors: Mapping[str, torch.Tensor],
    config: Mapping | AdapterConfig | None = None,
    adapters: AdapterReader | None = None,
) -> Lora:
    """Tensors by the keys of a LoRA file as factors; ``config`` is that of PEFT (r, lora_alpha,
    use_rslora, ...).

    Raises ValueError with the end of a sentence ("holds no LoRA ...") when they are not supported.
    """
    values = (
        config
        if isinstance(config, AdapterConfig)
        else adapter_config(config or {}, "The configuration")
    )
    lora = _parse(tensors, values, adapters)
    if not lora.layers:
        raise ValueError(_NO_LORA)
    return lora


def _parse(
    tensors: Mapping[str, torch.Tensor], config: AdapterConfig, adapters: AdapterReader | None
) -> Lora:
    found = _sort(tensors, config)
    _refuse_without(adapters, found)
    layers, text = (Layers(_makers(one, found, adapters)) for one in (found.layers, found.text))
    dropped = sum(
        float(value.double().square().sum())
        for one in found.rest.values()
        for value in one.parts.values()
    )
    return Lora(layers, text, {"biases and norms": dropped} if dropped else {}, _stems(found))


def _stems(found: FileParts) -> dict[str, str]:
    return {layer: one.stem for layer, one in [*found.layers.items(), *found.text.items()]}


def _sort(tensors: Mapping, config: AdapterConfig) -> FileParts:
    """Tensors, or their shapes, by layer.

    Raises ValueError for keys that are not known, for two keys of one part, and for control LoRAs.
    """
    sorted_parts = FileParts(config=config)
    style: dict[tuple[str, str], str] = {}
    for key, value in tensors.items():
        found = parse(key)
        if found is None:
            if "lora" in key.lower():
                raise ValueError(
                    f"has unknown keys, such as {key}: convert it to kohya's form first."
                )
            continue
        if found.part == RESHAPE:
            raise ValueError(
                f"enlarges {found.layer} (a control LoRA), which no other LoRA does: leave it out."
            )
        part = _part(found, key)
        if (found.layer, part) in style:
            other = style[found.layer, part]
            raise ValueError(
                f"has two keys for one layer, {other} and {key}: remove one of the two."
            )
        style[found.layer, part] = key
        vector = found.part in FULL and (
            found.part not in ("diff", "set_weight") or len(getattr(value, "shape", value)) < 2
        )
        if vector:
            group = sorted_parts.rest
        elif found.text:
            group = sorted_parts.text
        else:
            group = sorted_parts.layers
        before = group.get(found.layer)
        kind = found.part
        if found.part in (DOWN, UP, ALPHA):
            kind = before.kind if before else "LoRA"
        group[found.layer] = LayerParts(
            found.stem, kind, {**(before.parts if before else {}), part: value}
        )
    if config.dora:
        group = {
            layer: LayerParts(one.stem, "DoRA", one.parts)
            for layer, one in sorted_parts.layers.items()
        }
        return FileParts(
            layers=group, text=sorted_parts.text, rest=sorted_parts.rest, config=config
        )
    return sorted_parts


def _refuse_without(adapters: AdapterReader | None, found: FileParts) -> None:
    """Raise ValueError for what is not a plain LoRA where nothing reads it."""
    if adapters is None:
        for one in [*found.layers.values(), *found.text.values()]:
            if one.kind not in ("LoRA", "diff"):
                raise ValueError(f"is a {one.kind}, not a plain LoRA: {_COMFYUI_ALONE}")


def _part(found: LoraKey, key: str) -> str:
    """The name of a part as ComfyUI's adapters have it; factors and alpha keep theirs."""
    named = {"DoRA": "dora_scale", "LoCon with a middle factor": "lora_mid.weight"}
    if found.part in (DOWN, UP, ALPHA, *FULL, *named):
        return named.get(found.part, found.part)
    return ".".join(key.split(".")[-2:]) if found.part == "GLoRA" else key.rpartition(".")[2]


def _makers(
    layers: dict[str, LayerParts], file: FileParts, adapters: AdapterReader | None
) -> dict[str, Callable[[], Factors]]:
    return {
        layer: functools.partial(_factors, layer, one.parts, file, adapters)
        for layer, one in layers.items()
        if _check(layer, one.parts) - {ALPHA}
    }


def _check(layer: str, found: dict[str, torch.Tensor]) -> set[str]:
    """The parts of a layer; raises ValueError when they are not finite or do not fit."""
    if not all(value.dtype in NUMBERS for value in found.values()):
        raise ValueError(
            f"holds no plain numbers in {layer} (complex or packed ones): convert it to float16."
        )
    if not all(map(_finite, found.values())):
        raise ValueError(f"holds NaN or infinity in {layer}: remove it or train it again.")
    alpha = found.get(ALPHA)
    if alpha is not None and (alpha.numel() != 1 or abs(float(alpha)) > peft_files.LARGEST_ALPHA):
        raise ValueError(
            f"has an alpha of {layer} that is not one number up to {peft_files.LARGEST_ALPHA:g}."
        )
    if (DOWN in found) != (UP in found):
        raise ValueError(
            f"has only one factor of {layer}: the file is cut short, download it again."
        )
    if DOWN in found and "lora_mid.weight" not in found:
        down = found[DOWN]
        up = found[UP]
        if min(down.ndim, up.ndim) < 2 or down.shape[0] != up.shape[1]:
            raise ValueError(
                f"has factors of {layer} that do not fit ({tuple(up.shape)} and "
                f"{tuple(down.shape)})."
            )
    return set(found)


def _finite(values: torch.Tensor) -> bool:
    """Whether all values are finite, by the smallest and the largest one: twenty times faster than
    one by one.
    """
    if not values.numel():
        return True
    if values.dtype.itemsize == 1:  # fp8 has no aminmax
        values = values.float()
    low, high = values.aminmax()
    return math.isfinite(low) and math.isfinite(high)


def _factors(
    layer: str, found: dict[str, torch.Tensor], file: FileParts, adapters: AdapterReader | None
) -> Factors:
    if not set(found) - {DOWN, UP, ALPHA}:
        return Factors(found[DOWN], found[UP], file.scale(layer, found))
    if set(found) - {ALPHA} == {"diff"}:
        update = found["diff"].float()
    else:
        assert adapters is not None  # _refuse_without has refused such parts
        update = adapters.update(layer, adapter_parts(layer, found, file.config))
    outputs = len(update)
    return Factors(update, torch.eye(outputs).view(outputs, outputs, *[1] * (update.ndim - 2)))


def adapter_parts(
    layer: str, found: Mapping[str, torch.Tensor], config: AdapterConfig
) -> dict[str, torch.Tensor]:
    """The parts of a layer by the names of ComfyUI's adapters, with the alpha that a configuration
    gives.
    """
    alpha: torch.Tensor | float | None = found.get(ALPHA)
    if alpha is None:
        rank = found[DOWN].shape[0] if DOWN in found else config.rank
        alpha = (
            config.scale(rank, layer) * rank if config.alpha is not None or config.alphas else None
        )
    named = {
        f"lora_{part}.weight" if part in (DOWN, UP) else part: value
        for part, value in found.items()
    }
    return named | ({} if alpha is None else {ALPHA: torch.as_tensor(alpha)})


def _shapes(layers: dict[str, LayerParts], adapters: AdapterReader | None) -> dict[str, Shape]:
    """The shape of every layer that has one, from the shapes of its parts."""
    shapes = {}
    for layer, one in layers.items():
        found = one.parts
        if full := found.get("diff") or found.get("set_weight"):
            shapes[layer] = (full[1:], full[:1])
        elif not set(found) - {DOWN, UP, ALPHA}:
            if {DOWN, UP} <= set(found):
                shapes[layer] = (found[DOWN][1:], (found[UP][0], *found[UP][2:]))
        else:
            named = {
                f"lora_{part}.weight" if part in (DOWN, UP) else part: shape
                for part, shape in found.items()
            }
            assert adapters is not None  # _refuse_without has refused such parts
            if (shape := adapters.shape(layer, named)) is None:
                raise ValueError(f"needs the base model for {layer}: connect model.")
            shapes[layer] = shape
    return shapes


def _open(
    path: Path, stack: contextlib.ExitStack
) -> tuple[Callable[..., dict[str, torch.Tensor]], dict]:
    """A function from which layers are wanted (None: all) to the tensors of a file by key; and its
    metadata.
    """
    from safetensors import SafetensorError

    if path.suffix.lower() in _PICKLES:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file makes the unpickler raise nearly anything
            from .failures import is_out_of_memory

            if is_out_of_memory(error):
                raise
            raise ValueError(
                f"it holds more than tensors, or none: {type(error).__name__}"
            ) from None
        state = state.get("state_dict", state) if isinstance(state, dict) else None
        if not isinstance(state, dict):
            raise ValueError("not a table of tensors")
        state = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
        return lambda wanted: {key: state[key] for key in _wanted_keys(tuple(state), wanted)}, {}
    try:
        file = stack.enter_context(open_tensors(path))
        keys = tuple(map(sys.intern, file.keys()))
        metadata = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    return lambda wanted: {
        key: file.get_tensor(key) for key in _wanted_keys(keys, wanted)
    }, metadata


@functools.lru_cache(maxsize=64)
def _wanted_keys(keys: tuple[str, ...], wanted: Callable[[str], bool] | None) -> list[str]:
    """The keys of wanted layers and those of none, found once for all files that hold the same."""
    return [
        key
        for key in keys
        if wanted is None or (found := parse(key)) is None or wanted(found.layer)
    ]
