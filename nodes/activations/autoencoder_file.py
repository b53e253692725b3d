"""Sparse autoencoders on disk: this pack's .safetensors file, and the folders that Surkov et al.
published.

The published layout (arXiv 2410.22366): a folder such as
``unet.down_blocks.2.attentions.1_k10_hidden5120_auxk256_bs4096_lr0.0001/final`` with
``config.json`` (``n_dirs_local``, ``d_model``, ``k``), ``state_dict.pth`` ({"state_dict": ...}:
``encoder.weight`` (F, C), ``decoder.weight`` (C, F), ``pre_bias``, ``latent_bias``) and ``mean.pt``
(F,), the mean value of each feature. No pickle is executed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch

from ..common.atomic_write import atomic_write
from ..common.failures import is_out_of_memory
from ..common.headers import LARGEST_SIDE, HeaderError, Section, read_section
from ..common.safetensors_files import open_file, read_tensors
from .sparse_autoencoder import SparseAutoencoder

FORMAT_VERSION = 1
_FORMAT = "glassbox sparse autoencoder"
_NAMES = ("encoder", "decoder", "pre_bias", "latent_bias", "usual")
_BLOCK = re.compile(
    r"unet\.(?:(down|up)_blocks\.(\d+)\.attentions\.(\d+)|mid_block\.attentions\.0)(?![\d.])"
)


def write(autoencoder: SparseAutoencoder, path: Path) -> None:
    """Write the file whole or not at all."""
    from safetensors.torch import save_file

    header = {
        "id": autoencoder.id,
        "input_id": autoencoder.input_id,
        "k": autoencoder.k,
        "about": autoencoder.about,
    }
    metadata = {
        "format": _FORMAT,
        "format_version": str(FORMAT_VERSION),
        "autoencoder": json.dumps(header),
    }
    with atomic_write(path) as temporary:
        save_file(
            {name: getattr(autoencoder, name).contiguous() for name in _NAMES}, temporary, metadata
        )


def read(path: Path) -> SparseAutoencoder:
    """Read a file of ``write``, or a published folder; raises ValueError for any other, damaged or
    newer one.
    """
    return _read_published(path) if path.is_dir() else _read_file(path)


def _read_file(path: Path) -> SparseAutoencoder:
    with open_file(path, "train or download it again") as file:
        metadata = Section(file.metadata() or {}, path.name)
        if metadata.get("format") != _FORMAT or metadata.get("format_version") != str(
            FORMAT_VERSION
        ):
            raise ValueError(
                f"{path.name} is not a sparse autoencoder of format version {FORMAT_VERSION}. Use "
                "a file of Train Sparse Autoencoder, or a folder with config.json and "
                "state_dict.pth."
            )
        header = metadata.parsed("autoencoder")
        tensors = read_tensors(file, path.name, _NAMES)
    autoencoder = SparseAutoencoder(
        header.text("id"),
        header.integer("k", low=1, high=LARGEST_SIDE),
        **tensors,
        input_id=header.text("input_id"),
        about=dict(header.section("about")),
    )
    return _checked(autoencoder, path.name)


def _read_published(folder: Path) -> SparseAutoencoder:
    files = {name: folder / name for name in ("config.json", "state_dict.pth", "mean.pt")}
    missing = [name for name, path in files.items() if not path.is_file()]
    if missing:
        raise ValueError(
            f"{folder.name} lacks {', '.join(missing)}. Give the folder 'final' of a published "
            "release."
        )
    id_, input_id = block_ids(folder)
    try:
        config = read_section(files["config.json"].read_bytes(), f"{folder.name}/config.json", "it")
        k = config.integer("k", low=1, high=LARGEST_SIDE)
        shape = tuple(
            config.integer(key, low=1, high=LARGEST_SIDE) for key in ("n_dirs_local", "d_model")
        )
        weights = _load(files["state_dict.pth"])["state_dict"]
        encoder = weights["encoder.weight"]
        decoder = weights["decoder.weight"].T
        biases = weights["pre_bias"], weights["latent_bias"]
        usual = _load(files["mean.pt"])
        tensors = {
            name: value.float().contiguous()
            for name, value in zip(_NAMES, (encoder, decoder, *biases, usual), strict=True)
        }
    except HeaderError:
        raise
    except (
        OSError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        RuntimeError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{folder.name} cannot be read ({str(error)[:200]}). Download it again."
        ) from None
    about: dict[str, object] = {"source": "published folder, arXiv 2410.22366"}
    autoencoder = _checked(
        SparseAutoencoder(id_, k, **tensors, input_id=input_id, about=about), folder.name
    )
    if autoencoder.encoder.shape != shape:
        raise ValueError(
            f"{folder.name} is damaged: its weights have other sizes than config.json says."
        )
    return autoencoder


def block_ids(folder: Path) -> tuple[str, str]:
    """IDs of the transformer that a published folder is of, and of its input; ValueError when no
    name says it.
    """
    for name in reversed(folder.parts):
        if found := _BLOCK.match(name):
            stage, level, repeat = found.groups()
            if stage is None:
                return "mid-vit-out", "mid-repeat0-res-out"
            place = f"{stage}-level{level}-repeat{repeat}"
            return f"{place}-vit-out", f"{place}-res-out"
    raise ValueError(
        f"{folder.name} does not say which block it is of. Keep the published folder name, such as "
        "unet.down_blocks.2.attentions.1_k10_hidden5120_auxk256_bs4096_lr0.0001."
    )


def _load(path: Path) -> dict:
    """PyTorch's restricted reader, which executes nothing."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes the unpickler raise
        if is_out_of_memory(error):
            raise
        reason = (str(error).splitlines() or [""])[0][:120]
        raise ValueError(f"{path.name}: {reason or type(error).__name__}") from None


def _checked(autoencoder: SparseAutoencoder, name: str) -> SparseAutoencoder:
    """The autoencoder; raises ValueError when its tensors do not fit together."""
    features, channels = autoencoder.encoder.shape if autoencoder.encoder.ndim == 2 else (0, 0)
    shapes = ((features, channels), (features, channels), (channels,), (features,), (features,))
    tensors = [getattr(autoencoder, name) for name in _NAMES]
    if not 1 <= autoencoder.k <= features or any(
        tuple(value.shape) != shape
        or value.dtype != torch.float32
        or not bool(torch.isfinite(value).all())
        for value, shape in zip(tensors, shapes, strict=True)
    ):
        raise ValueError(
            f"{name} is damaged: its tensors do not fit together. Train or download it again."
        )
    return autoencoder
