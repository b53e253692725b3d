"""What newer versions of ComfyUI ask for besides, so that the tests run on them as on 0.3.75."""

from __future__ import annotations

import dataclasses
import importlib
from types import SimpleNamespace

from tools.launcher import comfyui

# Fields of a network's configuration that 0.3.75 does not know, with the value that changes
# nothing.
_FIELDS = {"txt_ids_dims": [], "vec_in_dim": None, "meanflow_sum": False}
_PARAMS = {
    "flux": "flux.model.FluxParams",
    "flux2": "flux.model.FluxParams",
    "chroma": "chroma.model.ChromaParams",
    "hunyuan_video": "hunyuan_video.model.HunyuanVideoParams",
}


def than_tested() -> bool:
    """Whether this ComfyUI is another than the one that the workflow files are made with, as
    COMFYUI_DIR may say.
    """
    return f'"{comfyui.VERSION}"' not in (comfyui.locate() / "comfyui_version.py").read_text(
        "utf-8"
    )


def network(config: dict) -> dict:
    """The configuration of a network, complete for the dataclass that holds it in this ComfyUI, if
    one does.
    """
    family = config.get("image_model")
    if family not in _PARAMS:
        return config
    module, _, name = _PARAMS[family].rpartition(".")
    params = getattr(importlib.import_module(f"comfy.ldm.{module}"), name)
    fields = {field.name for field in dataclasses.fields(params)}
    return {name: value for name, value in _FIELDS.items() if name in fields} | config


def executor(cache: str):
    """ComfyUI's executor with a cache of the named type, without a client."""
    import execution

    quiet = SimpleNamespace(
        client_id=None, last_node_id=None, last_prompt_id=None, send_sync=lambda *message: None
    )
    limits = {"lru": 0, "ram": 1.0, "ram_inactive": 1.0}  # in GB that it leaves free
    return execution.PromptExecutor(quiet, execution.CacheType[cache], limits)


def train_lora(app, **given) -> tuple[dict, list[float]]:
    """Run core's Train LoRA, which takes lists; inputs that are not given have their defaults.

    Returns the LoRA and the losses.
    """
    schema = app.classes["TrainLoraNode"].GET_SCHEMA()
    values = {
        field.id: [field.default]
        for field in schema.inputs
        if getattr(field, "default", None) is not None
    }
    values |= {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    kinds = (output.io_type for output in schema.outputs)
    outputs = dict(zip(kinds, app.run("TrainLoraNode", **values), strict=True))
    return outputs["LORA_MODEL"], outputs["LOSS_MAP"]["loss"]
