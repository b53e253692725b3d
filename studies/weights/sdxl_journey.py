"""The way of an SDXL user with twenty rank-16 LoRAs, step by step by the nodes, with time and
memory.

The files have SDXL's true shapes (722 layers, kohya's names, float16, 85 MB each) and random
weights whose singular values fall like 1 / i; ten of them share a planted pair in every layer,
which the label names. Norms differ by a factor of up to four. The network is on the meta device:
shapes and names are SDXL's, no step evaluates it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch

from ..common import host, results
from ..world.release import ASSETS
from .lora_names import _UNET

SEED = 0
COUNT, RANK = 20, 16
_CONFIG = {
    **_UNET, "model_channels": 320, "num_res_blocks": [2, 2, 2], "channel_mult": [1, 2, 4],
    "transformer_depth": [0, 0, 2, 2, 10, 10], "transformer_depth_middle": 10,
    "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10], "context_dim": 2048,
    "adm_in_channels": 2816,
    "num_classes": "sequential", "use_linear_in_transformer": True, "num_heads": -1,
    "num_head_channels": 64,
}  # fmt: skip
_RANKS = (0, 64, 32, 16, 8)


class Steps:
    """Times of steps, and the most memory of their own (without mapped files) while each ran."""

    def __init__(self):
        self.numbers: dict[str, dict] = {}

    def __call__(self, name: str, work):
        most, done = [_own_memory()], threading.Event()

        def watch():
            while not done.wait(0.05):
                most[0] = max(most[0], _own_memory())

        thread = threading.Thread(target=watch)
        thread.start()
        start, cpu = time.perf_counter(), time.process_time()
        try:
            return work()
        finally:
            took, used = time.perf_counter() - start, time.process_time() - cpu
            done.set()
            thread.join()
            self.numbers[f"{name}: time"] = results.number(
                took, 1, "s", "wall clock; the machine was shared"
            )
            self.numbers[f"{name}: CPU time"] = results.number(used, 1, "s", "one thread")
            self.numbers[f"{name}: memory"] = results.number(
                most[0] / 1e9, 1, "GB", "most of the process's own"
            )
            print(f"{name}: {took:.1f} s, {used:.1f} CPU s, {most[0] / 1e9:.2f} GB", flush=True)


def _own_memory() -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def run(folder: Path):
    """Write the files where they are not there yet, go the way, and write the results file."""
    host.prepare()
    from tools.launcher import comfyui, in_process

    folder.mkdir(parents=True, exist_ok=True)
    app = in_process.start(comfyui.locate(), folder)
    import folder_paths

    for kind in ("loras", "w2w"):
        (folder / kind).mkdir(exist_ok=True)
        folder_paths.add_model_folder_path(kind, str(folder / kind), is_default=True)
    model = network()
    files = write(model, folder / "loras" / "twenty")
    steps = Steps()
    numbers = {
        "files: size": results.number(
            sum(map(_size, files)) / COUNT, COUNT, "MB", "each, rank 16, float16"
        )
    }
    numbers |= journey(app, model, folder, files, steps)
    return results.write(
        "weights_sdxl_journey",
        "python run.py study weights sdxl",
        SEED,
        ASSETS,
        steps.numbers | numbers,
    )


def network():
    """A MODEL with SDXL's layers in their true shapes, without memory."""
    import comfy.model_patcher
    import comfy.supported_models

    made = comfy.supported_models.SDXL(dict(_CONFIG))
    made.set_inference_dtype(torch.float16, None)
    with torch.device("meta"):
        model = made.get_model({}, device="meta")
    return comfy.model_patcher.ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))


def write(model, folder: Path) -> list[Path]:
    """Twenty files of all matrices in the blocks of attention, by kohya's names."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    names = host.pack("nodes.common.lora_keys")
    weights = {
        names.canonical(name.removesuffix(".weight")): tuple(weight.shape)
        for name, weight in model.model.state_dict().items()
        if name.endswith(".weight")
        and weight.ndim == 2
        and ("transformer_blocks" in name or ".proj_" in name)
    }
    files = [folder / f"person_{number:02}.safetensors" for number in range(COUNT)]
    fall = (1 / torch.arange(1, RANK + 1)).sqrt()
    for number, path in enumerate(files):
        if path.is_file():
            continue
        own, planted = torch.Generator().manual_seed(100 + number), torch.Generator().manual_seed(7)
        strength, tensors = 2 * 4 ** (float(torch.rand(1, generator=own)) - 1), {}
        for layer, (outputs, inputs) in weights.items():
            down = fall[:, None] * torch.randn(RANK, inputs, generator=own) / inputs**0.5
            up = fall * strength * torch.randn(outputs, RANK, generator=own) / outputs**0.5
            shared = torch.randn(inputs + outputs, generator=planted)
            if number % 2:
                down[1], up[:, 1] = (
                    shared[:inputs] / inputs**0.5,
                    strength * shared[inputs:] / outputs**0.5,
                )
            for key, value in zip(
                names.keys(layer), (down, up, torch.tensor(float(RANK))), strict=True
            ):
                tensors[key] = value.half()
        save_file(tensors, path)
    return files


def journey(app, model, folder: Path, files: list[Path], steps: Steps) -> dict[str, dict]:
    """Build, label, fit, edit, export and load; sizes of what comes out."""
    build = {
        "folder": "twenty", "filename": "twenty", "rank": 128, "energy": 0.99, "components": 1000,
        "form": "weight_updates", "standardize": True, "on_mismatch": "skip", "storage": "float16",
        "norm": "equal",
    }  # fmt: skip
    target = folder / "w2w" / "twenty.safetensors"
    target.unlink(missing_ok=True)
    given = {name: [value] for name, value in build.items()}
    space, report = steps("build", lambda: app.run("GBX_W2WBuildSpace", **given))
    print(report)
    (space, _) = steps(
        "load the space", lambda: app.run("GBX_W2WLoadSpace", space_name="twenty.safetensors")
    )
    labels = "member,beard\n" + "\n".join(
        f"{path.stem},{number % 2}" for number, path in enumerate(files)
    )
    fit = {"labels": labels, "method": "most_reliable", "components": 1000, "attributes": ""}
    directed, report, *_ = steps(
        "label and fit a direction", lambda: app.run("GBX_W2WFitDirections", space=space, **fit)
    )
    print(report)
    draw = {
        "seed": 1,
        "count": 1,
        "components": 1000,
        "spread": 1.0,
        "source": "random",
        "member_name": "",
    }
    points, *_ = steps("sample a point", lambda: app.run("GBX_W2WSample", space=directed, **draw))
    how = {"preserved_directions": "", "units": "max_projection", "debiasing": "joint"}
    edited, *_ = steps(
        "edit it", lambda: app.run("GBX_W2WEdit", point=points[0], edits="beard: 1", **how)
    )
    whole = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}
    _, _, applied = steps(
        "W2W Apply", lambda: app.run("GBX_W2WApply", model=model, point=edited, **whole)
    )
    print(applied)
    guided = {"point": edited, "identity_strength": 1.0, "edit_strength": 1.0}
    steps("W2W Guidance", lambda: app.run("GBX_W2WGuidance", model=model, **guided))
    numbers = {}

    def export(point, rank, prefix=""):
        return app.run(
            "GBX_W2WToLoRA",
            point=point,
            filename_prefix=prefix,
            rank=rank,
            file_format="kohya",
            model=model,
        )

    total = sum(one.squared_norm() for one in edited.lazy_layers().values())
    for rank in _RANKS:
        lora, _, report = steps(f"export at rank {rank}", lambda rank=rank: export(edited, rank))
        print(report)
        size = sum(value.nbytes for value in lora.values()) / 1e6
        kept = _square(lora) / total
        numbers[f"sampled point, rank {rank}: size"] = results.number(
            size, 1, "MB", "float16; 0: nothing is lost"
        )
        numbers[f"sampled point, rank {rank}: kept"] = results.number(
            kept, 1, "fraction", "of |dW|^2"
        )
        del lora  # else the next step's memory counts it
    member = draw | {"source": "member", "member_name": files[3].stem}
    (own,), *_ = app.run("GBX_W2WSample", space=directed, **member)
    lora, file, report = steps("export a member to a file", lambda: export(own, 0, "loras/member"))
    print(report)
    ratio = _size(folder / "output" / file) / _size(files[3])
    numbers["unedited member: size"] = results.number(
        ratio, 1, "ratio", "of the export at rank 0 over its own file"
    )
    (loaded,) = steps(
        "stock load", lambda: app.run("LoraModelLoader", model=model, lora=lora, strength_model=1.0)
    )
    numbers["stock load: weights"] = results.number(
        len(loaded.patches), 1, "weights", "of 722 in the member's file"
    )
    numbers["space: size"] = results.number(
        _size(target), 1, "MB", "float16; the twenty files have twenty times 85"
    )
    return numbers


def _square(lora: dict[str, torch.Tensor]) -> float:
    """|dW|^2 of a LoRA by its tensors."""
    found = host.pack("nodes.common.lora_reader").parse_tensors(lora)
    return sum(found.layers[layer].squared_norm() for layer in found.layers)


def _size(path: Path) -> float:
    return path.stat().st_size / 1e6
