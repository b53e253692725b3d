"""Any folder of LoRAs of one base model: what it holds, and what a space of it keeps: `--loras
FOLDER`.

Figures come from W2W Build Space at its defaults but for what they compare. The result names the
files by name and hash, so that others can repeat it with theirs.
"""

from __future__ import annotations

import hashlib
import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from ..common import host, results

SEED = 0
_RANKS = (0, 64, 32, 16, 8, 4)
_LIMIT = 128  # W2W Build Space's


def run(folder: Path):
    """Measure a folder and write the results file, which has its name."""
    host.prepare()
    spaces = {}
    with tempfile.TemporaryDirectory() as work:
        for norm in ("keep", "equal"):
            spaces[norm] = build(folder, Path(work) / f"{norm}.safetensors", norm=norm)
        whole = {
            f"{storage}, norm {norm}": build(
                folder,
                Path(work) / f"{storage} {norm}.safetensors",
                storage=storage,
                norm=norm,
                energy=1.0,
                rank=0,
            )
            for storage in ("float32", "float16")
            for norm in ("keep", "equal")
        }
        exact = whole["float32, norm keep"]
        loras = {name: read(folder, name) for name in exact.members}
        numbers = of_files(exact, loras)
        for norm, space in spaces.items():
            numbers |= of_norm(space, norm)
        for storage, space in whole.items():
            numbers |= of_storage(space, loras, storage)
        numbers |= of_sizes(spaces["equal"])
    for name, entry in numbers.items():
        print(f"{name}: {entry['value']:.4g}")
    name = f"weights_folder_{folder.resolve().name}"
    command = f"python run.py study weights folder --loras {folder.resolve().name}"
    return results.write(
        name,
        command,
        SEED,
        folder,
        numbers,
        {"files": sources(folder), "skipped": exact.about["skipped"]},
    )


def build(folder: Path, target: Path, **changed):
    """The space of a folder, by the node's defaults."""
    builder, files = (
        host.pack("nodes.weights.space_builder"),
        host.pack("nodes.weights.member_sources"),
    )
    given = {"form": "weight_updates", "rank": _LIMIT, "storage": "float16", **changed}
    return builder.build(files.file_sources(folder), builder.BuildSettings(**given), target)


def read(folder: Path, name: str):
    """The LoRA of a member, text encoders included."""
    files = {
        source.name: source
        for source in host.pack("nodes.weights.member_sources").file_sources(folder)
    }
    return files[name].read()


def sources(folder: Path) -> dict[str, str]:
    """SHA-256 of every LoRA file by its name."""
    suffixes = host.pack("nodes.common.lora_reader").SUFFIXES
    files = sorted(path for path in folder.rglob("*") if path.suffix in suffixes)
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def of_files(space, loras: dict) -> dict[str, dict]:
    """Norms and raw cosines of the files' own changes."""
    norms = {name: lora.squared_norm() ** 0.5 for name, lora in loras.items()}
    gram = products(space)
    lengths = gram.diagonal().sqrt()
    cosines = gram / lengths[:, None] / lengths
    grouped = [set(group) for group in space.groups]
    apart = [
        abs(float(cosines[one, other]))
        for one, other in combinations(range(len(space.members)), 2)
        if not any({space.members[one], space.members[other]} <= group for group in grouped)
    ]
    found = {
        f"{name}: |dW|": results.number(norm, 1, "norm", "over all layers")
        for name, norm in norms.items()
    }
    return found | {
        "members": results.number(len(loras), len(loras), "files", "that W2W Build Space takes"),
        "norms, largest over smallest": results.number(
            max(norms.values()) / min(norms.values()), len(norms), "ratio", "|dW| of the members"
        ),
        "groups of near copies": results.number(
            len(grouped), len(loras), "groups", str(sorted(map(sorted, grouped)))
        ),
        "largest |cosine| of dW outside groups": results.number(
            max(apart), len(apart), "cosine", "of pairs of files"
        ),
    }


def products(space) -> torch.Tensor:
    """<dW_i, dW_j> of the members of a space on weight updates, float64."""
    rows = torch.stack([space.rebuild(row).double() for row in space.coefficients])
    return rows @ rows.T


def of_norm(space, norm: str) -> dict[str, dict]:
    """How much a space shows of every member, and how much of strength of training."""
    gram = space.coefficients.double() @ space.coefficients.double().T
    squares = gram.diagonal()
    variances = space.singular_values.double().square()
    half = space.components // 2
    norms, count = torch.tensor(space.about["norms"]), len(space.members)
    lost = (
        space.deviation[0].double()
        * space.coefficients[:, half:].double().norm(dim=1)
        / (norms * space.strengths)
    )
    cosines = gram / squares.sqrt()[:, None] / squares.sqrt()
    owner = {name: number for number, group in enumerate(space.groups) for name in group}
    apart = [
        float(cosines[one, other])
        for one, other in combinations(range(count), 2)
        if owner.get(space.members[one], one) != owner.get(space.members[other], other) or not owner
    ]
    order = [
        np.argsort(np.argsort(values))
        for values in (norms.numpy(), space.coefficients[:, 0].abs().numpy())
    ]
    return {
        f"norm {norm}: effective components": results.number(
            float(variances.sum() ** 2 / variances.square().sum()) / space.components, count,
            "fraction of all components",(
                "participation ratio of the variances; 1: all members count the "
                "same"
            ),
        ),
        f"norm {norm}: error of dW in half the components, mean": results.number(
            float(lost.mean()), count, "relative",
            f"|dW - dW'| / |dW| over members with {half} components"
        ),
        f"norm {norm}: error of dW in half the components, largest": results.number(
            float(lost.max()), count, "relative",
            f"|dW - dW'| / |dW| of a member with {half} components"
        ),
        f"norm {norm}: largest cosine from the mean outside groups": results.number(
            max(apart), len(apart), "cosine",(
                "of pairs of files whose dW have next to nothing in "
                "common"
            )
        ),
        f"norm {norm}: rank correlation of strength with component 1": results.number(
            float(abs(np.corrcoef(*order)[0, 1])), count, "correlation",(
                "of |dW| with the coefficient's "
                "size"
            )
        ),
    }  # fmt: skip


def of_storage(space, loras: dict, storage: str) -> dict[str, dict]:
    """dW of the member points against the files, and the size of their exports without editing."""
    points, writer = host.pack("nodes.weights.points"), host.pack("nodes.weights.lora_writer")
    projection = host.pack("nodes.weights.projection")
    errors, sizes = [], []
    for strength, (name, lora) in zip(space.strengths.tolist(), loras.items(), strict=True):
        lora = lora.scaled(strength)
        layers = {**lora.layers, **lora.text}
        point = points.member_point(space, name)
        made = point.layers()
        lost = sum(projection.difference(layers[layer], made[layer]) for layer in layers)
        errors.append((lost / lora.squared_norm()) ** 0.5)
        reduced, _ = writer.reduce(point.lazy_layers(), 0, point.tolerances(), torch.float16)
        count = sum(one.down.numel() + one.up.numel() for one in reduced.values())
        sizes.append(count / sum(one.down.numel() + one.up.numel() for one in layers.values()))
    about = "of members' points in a space without truncation"
    return {
        f"{storage}: largest error of dW": results.number(
            max(errors), len(errors), "relative", about
        ),
        f"{storage}: largest size of an unedited member": results.number(
            max(sizes),
            len(sizes),
            "ratio",
            f"numbers of the export at rank 0 over those of the file, {about}",
        ),
        f"{storage}: smallest size of an unedited member": results.number(
            min(sizes), len(sizes), "ratio", about
        ),
    }


def of_sizes(space) -> dict[str, dict]:
    """Size and kept energy of a sampled point by rank."""
    points, writer = host.pack("nodes.weights.points"), host.pack("nodes.weights.lora_writer")
    (point,) = points.sample(space, SEED, 1, space.components, 1.0)
    layers, found = point.layers(), {}
    total = sum(one.squared_norm() for one in layers.values())
    for rank in _RANKS:
        reduced, _ = writer.reduce(layers, rank, point.tolerances(), torch.float16)
        size = sum(one.down.nbytes + one.up.nbytes for one in reduced.values()) / 1e6
        kept = sum(one.squared_norm() for one in reduced.values()) / total
        found[f"sampled point, rank {rank}: size"] = results.number(
            size, 1, "MB", "float16; rank 0 loses nothing"
        )
        found[f"sampled point, rank {rank}: kept"] = results.number(
            kept, 1, "fraction", "of |dW|^2"
        )
    return found
