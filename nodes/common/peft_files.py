"""PEFT's adapter folders and configurations: the file of the weights, and alpha and rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .headers import Section, read_section

if TYPE_CHECKING:
    from types import ModuleType

    from .layer_patterns import LayerPatterns

STEM = "adapter_model"
#: The largest alpha that a file may have; trainers write 1 to some thousands.
LARGEST_ALPHA = 1e9
_LARGEST_RANK = 2**20
_PEFT_ALPHA = 8  # of a configuration that gives none
_PEFT_LORA = "LORA"
_WITH_ALPHA = (_PEFT_LORA, "LOHA", "LOKR", "ADALORA")  # kinds of PEFT with a rank and an alpha


class MissingPeftError(RuntimeError):
    """A PEFT adapter folder cannot be written without the package peft."""


def weights(folder: Path) -> Path:
    """The weights of a PEFT folder, such as NAME/unet/adapter_model.safetensors."""
    for inside in (".", "unet", "transformer"):
        if (path := folder / inside / "adapter_model.safetensors").is_file():
            return path
    raise ValueError(
        f"{folder.name} is a folder without adapter_model.safetensors: give LoRA files."
    )


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """What a PEFT configuration says of a LoRA's scale: alpha / rank, stabilized alpha /
    sqrt(rank).

    ``alpha``: of layers that ``alphas`` does not name; None where there is none.
    """

    alpha: float | None = None
    rank: int = 1
    stabilized: bool = False
    dora: bool = False
    alphas: LayerPatterns | None = None

    def scale(self, rank: int, *names: str) -> float:
        """The factor of up @ down of a layer without an alpha of its own; patterns know its
        names.
        """
        alpha = self.alphas.value(*names) if self.alphas else None
        alpha = self.alpha if alpha is None else alpha
        if alpha is None:
            return 1.0
        return alpha / (rank**0.5 if self.stabilized else rank)


def adapter_config(
    values: Mapping[str, object], file: str, default_alpha: float | None = None
) -> AdapterConfig:
    """The configuration of an adapter; raises HeaderError with the file's name and the key.

    A value of null counts as none, as PEFT writes it.
    """
    from .layer_patterns import LayerPatterns

    section = Section({key: value for key, value in values.items() if value is not None}, file)
    lokr_alpha = section.number(
        "alpha", low=-LARGEST_ALPHA, high=LARGEST_ALPHA, default=default_alpha
    )
    # The factors themselves show the ranks: these are only checked.
    LayerPatterns(section, "rank_pattern", low=1, high=_LARGEST_RANK)
    # PEFT writes a rank of 0 for OFT and the like, which have none.
    low_rank = section.text("peft_type", default=_PEFT_LORA) in _WITH_ALPHA
    rank = section.integer("r", low=1 if low_rank else 0, high=_LARGEST_RANK, default=1)
    return AdapterConfig(
        alpha=section.number(
            "lora_alpha", low=-LARGEST_ALPHA, high=LARGEST_ALPHA, default=lokr_alpha
        ),
        rank=max(rank, 1),
        stabilized=section.switch("use_rslora", default=False),
        dora=section.switch("use_dora", default=False),
        alphas=LayerPatterns(section, "alpha_pattern", low=-LARGEST_ALPHA, high=LARGEST_ALPHA),
    )


def folder_config(path: Path) -> dict:
    """The values of the configuration beside the weights of a PEFT adapter; empty for other files.

    Raises HeaderError when it cannot be read.
    """
    file = path.parent / "adapter_config.json"
    if not path.name.startswith(STEM) or not file.is_file():
        return {}
    values = read_section(file.read_bytes(), f"{file.parent.name}/{file.name}", "it")
    if values.text("peft_type", default=_PEFT_LORA) not in _WITH_ALPHA:
        return dict(values)
    return {"lora_alpha": values.get("alpha", _PEFT_ALPHA), **values}


def package() -> ModuleType:
    """The package peft; raises MissingPeftError without it."""
    try:
        import peft
    except ImportError as error:
        from .packages import missing_package

        raise MissingPeftError(
            missing_package("Writing a PEFT adapter folder", "peft", error)
        ) from error
    return peft


def embedded_config(metadata: Mapping[str, str], file: str) -> dict:
    """The configuration that newer diffusers writes into the header of a LoRA file.

    Raises HeaderError when they are no JSON object.
    """
    about = Section(metadata, file).parsed("lora_adapter_metadata", default={})
    values = {}
    for key, value in about.items():
        owner, _, name = key.partition(".")
        if owner in ("unet", "transformer"):
            values[name] = value
    return values
