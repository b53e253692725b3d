"""The weights family's nodes on the demo model with a small space of made-up members."""

from __future__ import annotations

import functools
from functools import cached_property
from pathlib import Path

import members
import torch
from safetensors.torch import save_file

COUNT = 8
#: Layers of the demo model.
LAYERS = {
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": (64, 64),
    "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_v": (128, 64),
    "mid_block.attentions.0.transformer_blocks.0.attn1.to_v": (128, 128),
    "up_blocks.2.attentions.1.transformer_blocks.0.attn2.to_q": (64, 64),
    "up_blocks.0.resnets.1.conv_shortcut": (256, 128),
}
_BUILD = {
    "folder": "people",
    "filename": "test",
    "rank": 1,
    "energy": 0.99,
    "components": 100,
    "form": "singular_values",
    "standardize": True,
    "on_mismatch": "skip",
    "storage": "float32",
    "norm": "keep",
}
_SAMPLE = {
    "seed": 1,
    "count": 1,
    "components": 100,
    "spread": 1.0,
    "source": "random",
    "member_name": "",
}
_EDIT = {"preserved_directions": "", "units": "max_projection", "debiasing": "joint"}


@functools.cache
def family(app, root: Path) -> Family:
    """One for all tests of a run; ``root`` is a folder of theirs."""
    return Family(app, root / "weight_models")


class Family:
    """Short forms of the nodes, each with defaults that a call may change."""

    def __init__(self, app, root: Path):
        import folder_paths

        self.run, self.folder = app.run, root / "loras"
        for kind in ("loras", "w2w"):
            (root / kind).mkdir(parents=True)
            folder_paths.add_model_folder_path(kind, str(root / kind), is_default=True)
        (self.folder / "people").mkdir()
        for seed in range(COUNT):
            made = {
                name: (0.5 * down, up)
                for name, (down, up) in members.factors(seed, layers=LAYERS).items()
            }
            save_file(members.kohya(made), self.folder / "people" / f"member_{seed:02}.safetensors")
        folder_paths.filename_list_cache.clear()
        self.model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
        texts = ("portrait", "")
        self.positive, self.negative = (
            app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in texts
        )

    @cached_property
    def space(self):
        return self.build()[0]

    @cached_property
    def point(self):
        return self.draw(self.space)[0]

    @cached_property
    def directed(self):
        """A space with the directions beard and glasses, and the report on them."""
        text = "member,beard,glasses\n" + "\n".join(
            f"member_{i:02},{i % 2},{int(i > 3)}" for i in range(COUNT)
        )
        return self.run(
            "GBX_W2WFitDirections",
            space=self.space,
            labels=text,
            method="least_squares",
            components=3,
            attributes="",
        )

    def build(self, **changed):
        wires = {name: changed.pop(name) for name in list(changed) if name.startswith("lora_")}
        given = {name: [value] for name, value in (_BUILD | changed).items()}
        return self.run("GBX_W2WBuildSpace", **given, **wires)

    def draw(self, space, **changed):
        return self.run("GBX_W2WSample", space=space, **(_SAMPLE | changed))[0]

    def edit(self, point, text, **changed):
        return self.run("GBX_W2WEdit", point=point, edits=text, **(_EDIT | changed))

    def apply(self, point, model=None, **changed):
        given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, **changed}
        return self.run("GBX_W2WApply", model=model or self.model, point=point, **given)[0]

    def project(self, **changed):
        given = {"lora_name": "none", "components": 100, **changed}
        return self.run("GBX_W2WProjectLoRA", space=self.space, **given)

    def sample(self, model, steps=3, cfg=2.0):
        """A latent of the model."""
        given = {
            "seed": 3,
            "steps": steps,
            "cfg": cfg,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        }
        return self.run(
            "KSampler",
            model=model,
            positive=self.positive,
            negative=self.negative,
            latent_image={"samples": torch.zeros(1, 24, 16, 16)},
            **given,
        )[0]["samples"]
