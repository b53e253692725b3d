"""Activation Steering, its directions and where they come from; Edit by Words: both act while any
sampler runs.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

import torch
from comfy_api.latest import io

from ..common import named_strengths
from ..host.evaluate import sample_latents, timestep_of
from ..host.folders import existing_file, next_file, output_stamp, relative
from ..host.hooks import observe, refuse_compiled
from ..host.progress import with_progress
from ..host.schema import float_input, int_input, schema, seed
from ..host.sockets import Activations as ActivationsSocket
from ..host.sockets import SteeringDirection as DirectionSocket
from ..host.text_encoding import encode
from . import select_ids
from .activations import Activations
from .tap_inputs import EDITABLE_PRESET, END_PERCENT, FILES, IDS, ROWS, START_PERCENT, STEER

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher
    from .steering import SteeringDirection

_PAPER = "Activation addition (arXiv 2308.10248), at the IDs of arXiv 2410.03558"
_DIRECTIONS_MAX = 8
_NAME = {
    "id": "name",
    "default": "",
    "optional": True,
    "tooltip": "Name of the direction for Mix Steering Directions.",
}


class Method(StrEnum):
    """Values of the ``method`` input."""

    MEAN_DIFFERENCE = "mean_difference"
    PRINCIPAL_COMPONENT = "principal_component"


class ActivationSteering(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationSteering",
            display_name="Activation Steering",
            category=STEER,
            description=(
                "Adds a direction to activations while any sampler runs on the returned MODEL. "
                "Combine several with Mix Steering Directions. Strength 0 is identical to the "
                f"input model. {_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "activation addition",
                "concept slider",
                "steering vector",
                "control vector",
                "edit features",
            ],
            inputs=[
                io.Model.Input(
                    "model", tooltip="The model used to compute the direction, with its LoRAs."
                ),
                DirectionSocket.Input(
                    "direction", tooltip="Steering direction for one or several IDs."
                ),
                float_input(
                    "strength",
                    0.3,
                    (-100.0, 100.0, 0.05),
                    "Start with 0.3 and increase until the image breaks; 1 adds a mean "
                    "difference unscaled. Negative values steer the other way.",
                ),
                io.Float.Input(**START_PERCENT),
                io.Float.Input(**END_PERCENT),
                io.Combo.Input(**ROWS),
                io.Boolean.Input(
                    "preserve_norm",
                    default=False,
                    tooltip="Rescale each position to its original norm after the addition.",
                ),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="Area to steer, one mask for all images or one per image.",
                ),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The steered model, for the sampler.")
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        direction: SteeringDirection,
        strength: float,
        start_percent: float,
        end_percent: float,
        rows: str,
        preserve_norm: bool,
        mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from . import activation_edit, steering
        from .activation_edit_comfy import steered_model
        from .catalog_unet import catalog

        refuse_compiled(model)
        channels = {id_: len(vector) for id_, vector in direction.vectors.items()}
        specs = activation_edit.editable_specs(
            channels, catalog(model.model.diffusion_model), "direction"
        )
        specs = [spec for spec in specs if direction.vectors[spec.id].any()]
        if strength == 0 or not specs or (mask is not None and not mask.any()):
            return io.NodeOutput(model)
        edit = steering.steer(
            direction,
            steering.SteeringSettings(strength=strength, preserve_norm=preserve_norm, mask=mask),
        )
        return io.NodeOutput(
            steered_model(
                model,
                specs,
                edit=edit,
                start_percent=start_percent,
                end_percent=end_percent,
                rows=rows,
            )
        )


class SteeringDirectionFromActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SteeringDirection",
            display_name="Steering Direction",
            category=STEER,
            description=(
                "Computes a direction for Activation Steering: the mean difference of two sets "
                f"of activations, or a principal component of one. {_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "steering vector",
                "contrast vector",
                "mean difference",
                "concept direction",
            ],
            inputs=[
                ActivationsSocket.Input(
                    "toward", tooltip="Activations to steer toward, tapped or recorded."
                ),
                io.Combo.Input(
                    "method",
                    options=[method.value for method in Method],
                    tooltip=(
                        "mean_difference: mean of toward minus mean of away. "
                        "principal_component: from toward alone."
                    ),
                ),
                int_input(
                    "component",
                    0,
                    (0, 63),
                    "For principal_component: component index from 0, by descending variance.",
                ),
                ActivationsSocket.Input(
                    "away",
                    optional=True,
                    tooltip="Activations to steer away from, with the same IDs.",
                ),
                io.String.Input(**_NAME),
            ],
            outputs=[
                DirectionSocket.Output(
                    display_name="direction", tooltip="For Activation Steering."
                ),
                io.String.Output(display_name="report", tooltip="Channels and norm for each ID."),
            ],
        )

    @classmethod
    def execute(
        cls,
        toward: Activations,
        method: str,
        component: int,
        away: Activations | None = None,
        name: str = "",
    ) -> io.NodeOutput:
        from . import steering

        if method == Method.PRINCIPAL_COMPONENT:
            direction = steering.principal_direction(toward, component)
        elif away is None:
            raise ValueError(
                "mean_difference needs away: connect the activations of what to steer away from."
            )
        else:
            direction = steering.mean_difference(toward, away)
        direction = replace(direction, name=name.strip())
        return io.NodeOutput(direction, direction.report())


class SteeringDirectionFromPrompts(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_PromptSteeringDirection",
            advanced=("recorded_steps",),
            display_name="Steering Direction from Prompts",
            category=STEER,
            description=(
                "Computes a direction for Activation Steering from two sets of prompts: samples "
                f"each prompt, records its activations, and takes the mean difference. {_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "steering vector",
                "contrast prompts",
                "concept direction",
                "concept slider",
            ],
            inputs=[
                io.Model.Input("model", tooltip="Model to steer."),
                io.Clip.Input("clip", tooltip="CLIP that encodes the prompts."),
                io.Latent.Input(
                    "latent",
                    tooltip=(
                        "Empty latent; sets the size. Its batch size is the number of seeds per "
                        "prompt."
                    ),
                ),
                io.String.Input(
                    "toward_prompts",
                    multiline=True,
                    default="",
                    tooltip="Prompts to steer toward, one per line.",
                ),
                io.String.Input(
                    "away_prompts",
                    multiline=True,
                    default="",
                    tooltip="Prompts to steer away from, one per line.",
                ),
                io.Combo.Input(**EDITABLE_PRESET),
                io.String.Input(**IDS),
                io.String.Input(
                    "recorded_steps",
                    default="all",
                    tooltip=f"Steps to record: {select_ids.STEPS_EXAMPLE}. Steps count from 0.",
                ),
                seed("Seed of the noise, the same for all prompts."),
                int_input("steps", 10, (1, 1000), "Sampling steps per prompt (euler)."),
                float_input("cfg", 3.0, (1.0, 100.0, 0.1), "CFG scale."),
                io.String.Input(**_NAME),
            ],
            outputs=[
                DirectionSocket.Output(
                    display_name="direction", tooltip="For Activation Steering."
                ),
                io.String.Output(display_name="report", tooltip="Channels and norm for each ID."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        latent: dict,
        toward_prompts: str,
        away_prompts: str,
        preset: str,
        ids: str,
        recorded_steps: str,
        seed: int,
        steps: int,
        cfg: float,
        name: str = "",
    ) -> io.NodeOutput:
        from . import activation_edit, steering
        from .catalog_unet import catalog
        from .recorder import Recorder
        from .tap import TapSettings

        refuse_compiled(model)
        every = catalog(model.model.diffusion_model)
        specs = select_ids.select(every, preset, ids)
        activation_edit.editable_specs(
            {spec.id: spec.channels for spec in specs}, every, "selection"
        )
        prompts = steering.contrasted_prompts(toward_prompts, away_prompts)
        selects = select_ids.parse_steps(recorded_steps)
        settings = TapSettings(dtype=torch.float32)
        negative = encode(clip, "")[1]

        def record(prompt: str) -> Activations:
            recorder = Recorder(specs, settings, selects, lambda sigma: timestep_of(model, sigma))
            positive = encode(clip, prompt)[1]
            watched = observe(model, recorder)
            run = recorder.run_of(
                sample_latents(
                    watched,
                    positive,
                    negative=negative,
                    latent=latent["samples"],
                    steps=steps,
                    cfg=cfg,
                    seed=seed,
                )
            )
            run.require_recorded("Select other steps in recorded_steps.")
            return run.average()

        vectors = steering.contrast(prompts[0], prompts[1], record, with_progress)
        about = f"Difference of means of {len(prompts[0])} and {len(prompts[1])} prompts"
        direction = steering.SteeringDirection(vectors, about, name.strip())
        return io.NodeOutput(direction, direction.report())


class MixSteeringDirections(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MixSteeringDirections",
            display_name="Mix Steering Directions",
            category=STEER,
            description=(
                "Weighted sum of several directions, for one Activation Steering. The strengths "
                f"are sliders. {_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "concept sliders",
                "several directions",
                "add steering vectors",
                "combine directions",
            ],
            inputs=[
                DirectionSocket.Input("direction_1", tooltip="Steering direction of the model."),
                io.String.Input(
                    "edits",
                    default="",
                    multiline=True,
                    tooltip=(
                        f"Names and strengths: {named_strengths.EXAMPLE}. Negative strengths "
                        "reverse a direction. A direction without a name is named after its "
                        "input."
                    ),
                ),
                *(
                    DirectionSocket.Input(
                        f"direction_{number}", optional=True, tooltip="A further direction."
                    )
                    for number in range(2, _DIRECTIONS_MAX + 1)
                ),
            ],
            outputs=[
                DirectionSocket.Output(
                    display_name="direction", tooltip="For Activation Steering."
                ),
                io.String.Output(display_name="report", tooltip="Channels and norm for each ID."),
            ],
        )

    @classmethod
    def execute(cls, edits: str, **given: SteeringDirection | None) -> io.NodeOutput:
        from . import steering

        sockets = {id_: direction for id_, direction in given.items() if direction is not None}
        names = {id_: direction.name or id_ for id_, direction in sockets.items()}
        directions = {names[id_]: direction for id_, direction in sockets.items()}
        if len(directions) < len(names):
            raise ValueError(
                "Two directions have the same name: enter another name in the node that computes "
                "one."
            )
        mixed = steering.mix(directions, edits)
        return io.NodeOutput(mixed, mixed.report(), ui={"glassbox_directions": [names]})


class SaveSteeringDirection(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SaveSteeringDirection",
            display_name="Save Steering Direction",
            category=FILES,
            description=f"Saves a steering direction as a .safetensors file. {_PAPER}.",
            search_aliases=[
                "diffusion features",
                "export steering vector",
                "save control vector",
                "write direction file",
                "keep direction",
            ],
            is_output_node=True,
            inputs=[
                DirectionSocket.Input("direction", tooltip="Steering direction."),
                io.String.Input(
                    "filename_prefix",
                    default="glassbox/direction",
                    tooltip="Folder and name inside ComfyUI's output folder. A number is appended.",
                ),
            ],
            outputs=[
                io.String.Output(
                    display_name="file", tooltip="Path inside ComfyUI's output folder."
                )
            ],
        )

    @classmethod
    def execute(cls, direction: SteeringDirection, filename_prefix: str) -> io.NodeOutput:
        from . import steering

        path = next_file(filename_prefix, ".safetensors")
        steering.write(direction, path)
        return io.NodeOutput(relative(path))


class LoadSteeringDirection(io.ComfyNode):
    READS: ClassVar = {"file": output_stamp}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadSteeringDirection",
            display_name="Load Steering Direction",
            category=FILES,
            description=f"Loads a file saved by Save Steering Direction. {_PAPER}.",
            search_aliases=[
                "diffusion features",
                "import steering vector",
                "load control vector",
                "open direction file",
                "saved direction",
            ],
            inputs=[
                io.String.Input(
                    "file",
                    default="glassbox/direction_00001_.safetensors",
                    tooltip=(
                        "Path inside ComfyUI's output folder, as returned by Save Steering "
                        "Direction."
                    ),
                ),
            ],
            outputs=[
                DirectionSocket.Output(
                    display_name="direction", tooltip="For Activation Steering."
                ),
                io.String.Output(display_name="report", tooltip="Channels and norm for each ID."),
            ],
        )

    @classmethod
    def execute(cls, file: str) -> io.NodeOutput:
        from . import steering

        direction = steering.read(existing_file(file))
        return io.NodeOutput(direction, direction.report())


class EditByWords(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_EditByWords",
            display_name="Edit by Words (Edit Image)",
            category=STEER,
            description=(
                "Adds (target - source) x strength to the cross-attention output, like a "
                "negative prompt applied inside attention. Use it for edits stronger than "
                "rewording the prompt gives: existing images, or the last steps of a run. "
                "Strength 0 is bit-identical. No paper: the difference of negative prompting, "
                "inside cross-attention."
            ),
            search_aliases=[
                "diffusion features",
                "prompt editing",
                "edit image with text",
                "concept slider",
                "change hair color",
                "prompt to prompt",
                "semantic guidance",
            ],
            inputs=[
                io.Model.Input(
                    "model", tooltip="Model for images or video that is prompted with text."
                ),
                io.Clip.Input("clip", tooltip="The CLIP used for the prompt, with its LoRAs."),
                io.String.Input(
                    "edits",
                    default="",
                    multiline=True,
                    tooltip=(
                        f"Words and strengths: {named_strengths.WORDS_EXAMPLE}. Words before an "
                        "arrow are the source, words after it the target. 1 is as strong as "
                        "rewording the prompt. Negative strengths reverse an edit."
                    ),
                ),
                io.String.Input(
                    "prompt",
                    default="",
                    multiline=True,
                    tooltip=(
                        "The sampled prompt: the source is this prompt, and the target has the "
                        "words replaced, or appended if there is no arrow. Empty: the words of "
                        "the edits alone."
                    ),
                ),
                io.Float.Input(
                    **START_PERCENT | {"tooltip": "Start of the edits, as a fraction of the run."}
                ),
                io.Float.Input(
                    **END_PERCENT | {"tooltip": "End of the edits, as a fraction of the run."}
                ),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="Area to change, one mask for all images or one per image.",
                ),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The edited model, for the sampler."),
                io.String.Output(
                    display_name="report", tooltip=("The source and target text of each edit.")
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        edits: str,
        prompt: str,
        start_percent: float,
        end_percent: float,
        mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from . import word_edit
        from .word_edit_comfy import edited_model

        refuse_compiled(model)
        read = word_edit.read_edits(edits, prompt)
        report = (
            "\n".join(one.describe() for one in read) or "No edits: the model is the input model."
        )
        return io.NodeOutput(
            edited_model(
                model,
                clip,
                edits=read,
                start_percent=start_percent,
                end_percent=end_percent,
                mask=mask,
            ),
            report,
        )


NODES = [
    EditByWords,
    ActivationSteering,
    SteeringDirectionFromPrompts,
    SteeringDirectionFromActivations,
    MixSteeringDirections,
    SaveSteeringDirection,
    LoadSteeringDirection,
]
