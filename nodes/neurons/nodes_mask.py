"""Neuron masks: edit, save, load and bake."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

from comfy_api.latest import io

from ..common.atomic_write import atomic_write
from ..host import folders
from ..host.folders import input_stamp, resolve_input_file
from ..host.progress import interruptible
from ..host.schema import float_input, int_input, schema, seed
from ..host.sockets import NeuronMask as Socket
from . import mask_operations, nemo_inputs
from .first_step_comfy import probe_outputs
from .mask import CAVEATS, channel_factors
from .mask_operations import MaskOperation
from .memorization_score import PAPER_THRESHOLD
from .neuron_factors_comfy import bake_factors
from .neuron_layers import all_layers
from .neuron_statistics import fingerprint, same_model

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher
    from .mask import NeuronMask

CATEGORY = nemo_inputs.CATEGORY
PAPER = nemo_inputs.PAPER
_OTHER_MODEL = (
    "This mask was made with another checkpoint or LoRA: run NeMo Localize on this MODEL.\n"
)
_TWO_MODELS = (
    "The two masks were made with different checkpoints or LoRAs: they do not belong together."
)


class NeuronMaskEdit(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronMaskEdit",
            display_name="Neuron Mask Edit",
            category=CATEGORY,
            description=(
                "Edits neuron masks: combines two, keeps the most frequent neurons or the "
                "largest absolute z, drops or keeps named neurons, or makes a random control of "
                f"equal size. {PAPER}, section 4."
            ),
            search_aliases=[
                "memorization",
                "nemo",
                "merge neuron masks",
                "random neurons",
                "scale neurons",
            ],
            inputs=[
                Socket.Input(**nemo_inputs.MASK),
                io.Combo.Input(
                    "operation",
                    options=MaskOperation,
                    tooltip=(
                        "union, intersection and subtract need other_mask; random_control needs "
                        "the MODEL."
                    ),
                ),
                int_input(
                    "count",
                    10,
                    (1, 100000),
                    "For most_frequent and largest_z: number of neurons to keep.",
                ),
                io.String.Input(
                    "neurons",
                    default="",
                    multiline=True,
                    tooltip=(
                        "For keep_named and drop_named: one line per layer, such as "
                        "input_blocks.1.1, optionally followed by neuron numbers: "
                        "input_blocks.1.1 25, 221."
                    ),
                ),
                seed(
                    "For random_control: seed of the random neurons; neurons of the mask itself "
                    "are never drawn."
                ),
                Socket.Input("other_mask", optional=True, tooltip="The second mask."),
                io.Model.Input(
                    "model",
                    optional=True,
                    tooltip="For random_control: the model, to know its neurons.",
                ),
            ],
            outputs=[
                Socket.Output(
                    display_name="mask", tooltip="The new mask; the inputs are not changed."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Number of neurons before and after, and the operation.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        mask: NeuronMask,
        operation: str,
        count: int,
        neurons: str,
        seed: int,
        other_mask: NeuronMask | None = None,
        model: ModelPatcher | None = None,
    ) -> io.NodeOutput:
        from . import neuron_reports

        known = [] if model is None else all_layers(model.model.diffusion_model)
        widths = {layer.path: layer.width for layer in known}
        edit = mask_operations.MaskEdit(
            mask=mask, count=count, neurons=neurons, seed=seed, other=other_mask, widths=widths
        )
        result = mask_operations.OPERATIONS[MaskOperation(operation)](edit)
        lines = [f"{mask.count} neurons before, {result.count} after.", *result.history]
        if (
            operation in mask_operations.OF_TWO
            and other_mask is not None
            and not same_model(mask.fingerprint, other_mask.fingerprint)
        ):
            lines.append(_TWO_MODELS)
        chart = neuron_reports.mask_chart(mask)
        kept = [
            place
            for place, (path, index, *_) in enumerate(chart["neurons"])
            if index in result.scales.get(path, ())
        ]
        chart |= {"operation": operation, "largest": count, "kept": kept}
        return io.NodeOutput(result, "\n".join(lines), ui={"glassbox_neurons": [chart]})


class SaveNeuronMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SaveNeuronMask",
            display_name="Save Neuron Mask",
            category=CATEGORY,
            description=(
                "Writes a neuron mask as readable JSON: layers, neurons, factors, prompts, "
                f"scores, settings and caveats. {PAPER}. {CAVEATS[2]}"
            ),
            search_aliases=[
                "memorization",
                "nemo",
                "export neuron mask",
                "write mask file",
                "keep neurons",
            ],
            inputs=[
                Socket.Input(**nemo_inputs.MASK),
                io.String.Input(
                    "filename_prefix",
                    default="glassbox/neuron_mask",
                    tooltip=(
                        "Prefix of the file in ComfyUI's output folder; may hold folders and "
                        "%date%."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(
                    display_name="file",
                    tooltip="Its path in the output folder, for Load Neuron Mask.",
                ),
                io.String.Output(display_name="text", tooltip="The file's content."),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, mask: NeuronMask, filename_prefix: str) -> io.NodeOutput:
        from . import mask_file

        text = interruptible(lambda: mask_file.to_json(mask))  # megabytes for many searches
        path = folders.next_file(filename_prefix, ".json")
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        return io.NodeOutput(folders.relative(path), text)


class LoadNeuronMask(io.ComfyNode):
    READS: ClassVar = {"file": functools.partial(input_stamp, what="neuron mask")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadNeuronMask",
            display_name="Load Neuron Mask",
            category=CATEGORY,
            description=(
                "Reads a mask from Save Neuron Mask, or the official code's result table (.csv) "
                f"for SD1.x. {PAPER}. {CAVEATS[2]}"
            ),
            search_aliases=[
                "memorization",
                "nemo",
                "import neuron mask",
                "open mask file",
                "saved neurons",
            ],
            inputs=[
                io.String.Input(
                    "file",
                    default="",
                    tooltip=(
                        "Path in ComfyUI's input or output folder: .json, or the official .csv."
                    ),
                ),
                io.Model.Input(
                    "model",
                    tooltip="The model of the mask; the mask is checked against it.",
                ),
                float_input(
                    "threshold",
                    PAPER_THRESHOLD,
                    (0.0, 1.0, 0.001),
                    "For the official .csv: the --ssim_threshold of that run, at which its "
                    "searches converged.",
                    optional=True,
                ),
            ],
            outputs=[
                Socket.Output(display_name="mask", tooltip="For NeMo Neuron Mask."),
                io.String.Output(
                    display_name="table",
                    tooltip="CSV: prompt, layer, neuron, factor, z, activation, selected_by.",
                ),
                io.String.Output(
                    display_name="report", tooltip="Number of neurons, layers and prompts."
                ),
            ],
        )

    @classmethod
    def execute(
        cls, file: str, model: ModelPatcher, threshold: float = nemo_inputs.PAPER_THRESHOLD
    ) -> io.NodeOutput:
        from . import mask_file, neuron_reports

        path = resolve_input_file(file, "neuron mask")
        known = all_layers(model.model.diffusion_model)
        mask = interruptible(lambda: mask_file.read(path, known, threshold))
        channel_factors(mask, known)
        shared = [path for path in mask.fingerprint if path in {layer.path for layer in known}]
        warning = (
            ""
            if same_model(mask.fingerprint, fingerprint(probe_outputs(model, shared)))
            else _OTHER_MODEL
        )
        stalled = sum(not search.converged for search in mask.searches)
        report = (
            f"{warning}{mask.count} neurons in {len(mask.scales)} layers, from "
            f"{len(mask.searches)} prompts ({stalled} searches "
            f"stalled).\n{neuron_reports.caveats()}"
        )
        table = interruptible(
            lambda: neuron_reports.mask_table(mask)
        )  # a line for each neuron of each prompt
        return io.NodeOutput(mask, table, report)


class BakeNeuronMask(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_BakeNeuronMask",
            display_name="Bake Neuron Mask",
            category=CATEGORY,
            description=(
                "Bakes a mask into the weights: scales the masked neurons' weights, so that Save "
                "Checkpoint writes a model that needs no mask. Connect LoRAs first; acts on all "
                f"steps and on both prompts. {PAPER}, section 3. {CAVEATS[0]}"
            ),
            search_aliases=[
                "memorization",
                "nemo",
                "prune neurons",
                "save masked checkpoint",
                "permanent mask",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The model of the mask, with its LoRAs."),
                Socket.Input(**nemo_inputs.MASK),
                io.Float.Input(**nemo_inputs.STRENGTH),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model", tooltip="For any sampler, and for Save Checkpoint."
                )
            ],
        )

    @classmethod
    def execute(cls, model: ModelPatcher, mask: NeuronMask, strength: float) -> io.NodeOutput:
        factors = channel_factors(mask, all_layers(model.model.diffusion_model), strength)
        return io.NodeOutput(bake_factors(model, factors) if factors else model)


NODES = [NeuronMaskEdit, SaveNeuronMask, LoadNeuronMask, BakeNeuronMask]
