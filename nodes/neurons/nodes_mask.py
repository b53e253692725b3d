"""Neuron masks: edit, save, load, bake and report."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, ClassVar

from comfy_api.latest import io

from ..common.atomic_write import atomic_write
from ..host import folders
from ..host.folders import input_stamp, resolve_input_file
from ..host.image_output import new_figure, to_compare, to_image
from ..host.progress import interruptible, nothing_to_show, with_progress
from ..host.schema import NeuronMask as Socket
from ..host.schema import float_input, int_input, schema, seed
from . import mask_operations, nemo_inputs
from .first_step_comfy import probe_outputs
from .image_similarity_comfy import Similarity, image_judge, image_reader
from .mask import CAVEATS, channel_factors
from .mask_operations import MaskOperation
from .memorization_score import PAPER_THRESHOLD
from .neuron_factors_comfy import bake_factors
from .neuron_layers import all_layers
from .neuron_statistics import fingerprint, same_model

if TYPE_CHECKING:
    from .image_similarity import ImageSimilarity, Remains

CATEGORY, PAPER = nemo_inputs.CATEGORY, nemo_inputs.PAPER
_OTHER_MODEL = "This mask was made with another checkpoint or LoRA: run NeMo Localize on this MODEL.\n"
_TWO_MODELS = "The two masks were made with different checkpoints or LoRAs: they do not belong together."


class NeuronMaskEdit(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronMaskEdit",
            display_name="Neuron Mask Edit",
            category=CATEGORY,
            description="Combines two neuron masks, keeps the neurons found for most prompts or of the largest "
            f"absolute z, drops or keeps named ones, or makes a random control of equal size. {PAPER}, section 4.",
            search_aliases=["memorization", "nemo", "merge neuron masks", "random neurons", "scale neurons"],
            inputs=[
                Socket.Input(**nemo_inputs.MASK),
                io.Combo.Input(
                    "operation",
                    options=MaskOperation,
                    tooltip="union, intersection and subtract need other_mask; random_control needs the MODEL.",
                ),
                int_input("count", 10, (1, 100000), "For most_frequent and largest_z: how many neurons to keep."),
                io.String.Input(
                    "neurons",
                    default="",
                    multiline=True,
                    tooltip="For keep_named and drop_named: one line per layer, such as input_blocks.1.1, optionally "
                    "followed by neuron numbers: input_blocks.1.1 25, 221.",
                ),
                seed("For random_control: which neurons are drawn, never those of the mask itself."),
                Socket.Input("other_mask", optional=True, tooltip="The second mask."),
                io.Model.Input("model", optional=True, tooltip="For random_control: gives the number of neurons."),
            ],
            outputs=[
                Socket.Output(display_name="mask", tooltip="The new mask; the inputs are not changed."),
                io.String.Output(
                    display_name="report", tooltip="How many neurons before and after, and what was done."
                ),
            ],
        )

    @classmethod
    def execute(cls, mask, operation, count, neurons, seed, other_mask=None, model=None) -> io.NodeOutput:
        from . import neuron_reports

        known = [] if model is None else all_layers(model.model.diffusion_model)
        widths = {layer.path: layer.width for layer in known}
        edit = mask_operations.MaskEdit(mask, count, neurons, seed, other_mask, widths)
        result = mask_operations.OPERATIONS[MaskOperation(operation)](edit)
        lines = [f"{mask.count} neurons before, {result.count} after.", *result.history]
        if operation in mask_operations.OF_TWO and not same_model(mask.fingerprint, other_mask.fingerprint):
            lines.append(_TWO_MODELS)
        chart = neuron_reports.mask_chart(mask)
        kept = [
            place for place, (path, index, *_) in enumerate(chart["neurons"]) if index in result.scales.get(path, ())
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
            description="Writes a neuron mask as readable JSON: layers, neurons, factors, prompts, scores, settings "
            f"and caveats. {PAPER}. {CAVEATS[2]}",
            search_aliases=["memorization", "nemo", "export neuron mask", "write mask file", "keep neurons"],
            inputs=[
                Socket.Input(**nemo_inputs.MASK),
                io.String.Input(
                    "filename_prefix",
                    default="glassbox/neuron_mask",
                    tooltip="Prefix of the file in ComfyUI's output folder; may hold folders and %date%.",
                ),
            ],
            outputs=[
                io.String.Output(display_name="file", tooltip="Its path in the output folder, for Load Neuron Mask."),
                io.String.Output(display_name="text", tooltip="The content of the file."),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, mask, filename_prefix: str) -> io.NodeOutput:
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
            description="Reads a mask from Save Neuron Mask, or the official code's result table (.csv) for SD1.x. "
            f"{PAPER}. {CAVEATS[2]}",
            search_aliases=["memorization", "nemo", "import neuron mask", "open mask file", "saved neurons"],
            inputs=[
                io.String.Input(
                    "file", default="", tooltip="Path in ComfyUI's input or output folder: .json, or the official .csv."
                ),
                io.Model.Input(
                    "model", tooltip="The model that the mask was made for; the mask is checked against it."
                ),
                float_input(
                    "threshold",
                    PAPER_THRESHOLD,
                    (0.0, 1.0, 0.001),
                    "For the official .csv: the --ssim_threshold of that run, at which its searches converged.",
                    optional=True,
                ),
            ],
            outputs=[
                Socket.Output(display_name="mask", tooltip="For NeMo Neuron Mask."),
                io.String.Output(
                    display_name="table", tooltip="CSV: prompt, layer, neuron, factor, z, activation, selected_by."
                ),
                io.String.Output(display_name="report", tooltip="Number of neurons, layers and prompts."),
            ],
        )

    @classmethod
    def execute(cls, file, model, threshold=nemo_inputs.THRESHOLD["default"]) -> io.NodeOutput:
        from . import mask_file, neuron_reports

        path, known = resolve_input_file(file, "neuron mask"), all_layers(model.model.diffusion_model)
        mask = interruptible(lambda: mask_file.read(path, known, threshold))
        channel_factors(mask, known)
        shared = [path for path in mask.fingerprint if path in {layer.path for layer in known}]
        warning = "" if same_model(mask.fingerprint, fingerprint(probe_outputs(model, shared))) else _OTHER_MODEL
        stalled = sum(not search.converged for search in mask.searches)
        report = (
            f"{warning}{mask.count} neurons in {len(mask.scales)} layers, from {len(mask.searches)} prompts ({stalled} "
            f"searches stalled).\n{neuron_reports.caveats()}"
        )
        table = interruptible(lambda: neuron_reports.mask_table(mask))  # a line for each neuron of each prompt
        return io.NodeOutput(mask, table, report)


class BakeNeuronMask(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_BakeNeuronMask",
            display_name="Bake Neuron Mask",
            category=CATEGORY,
            description="Scales the weights of the masked neurons, so that Save Checkpoint writes a model that "
            "needs no mask. Connect LoRAs first; acts on all steps and on both prompts. "
            f"{PAPER}, section 3. {CAVEATS[0]}",
            search_aliases=["memorization", "nemo", "prune neurons", "save masked checkpoint", "permanent mask"],
            inputs=[
                io.Model.Input("model", tooltip="The model that the mask was made for, with its LoRAs."),
                Socket.Input(**nemo_inputs.MASK),
                io.Float.Input(**nemo_inputs.STRENGTH),
            ],
            outputs=[io.Model.Output(display_name="model", tooltip="For any sampler, and for Save Checkpoint.")],
        )

    @classmethod
    def execute(cls, model, mask, strength: float) -> io.NodeOutput:
        factors = channel_factors(mask, all_layers(model.model.diffusion_model), strength)
        return io.NodeOutput(bake_factors(model, factors) if factors else model)


class NeuronReport(io.ComfyNode):
    READS: ClassVar = {"sscd_file": functools.partial(input_stamp, what="SSCD model")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronReport",
            display_name="Neuron Report",
            category=CATEGORY,
            description="Shows a neuron mask and its effect: neurons by layer, their z-scores, and images before and "
            "after compared with each other and with an image that should not be replicated. "
            f"{PAPER}, section 4. {CAVEATS[0]}",
            search_aliases=["nemo", "memorization report", "replication", "diversity", "clip score"],
            inputs=[
                Socket.Input(**nemo_inputs.MASK),
                io.Image.Input("images_before", optional=True, tooltip="Images without the mask, of several seeds."),
                io.Image.Input("images_after", optional=True, tooltip="The same seeds with the mask."),
                io.Image.Input("reference_image", optional=True, tooltip="The image that should not be replicated."),
                io.String.Input(
                    "prompt",
                    default="",
                    multiline=True,
                    optional=True,
                    tooltip="The prompt of the images, to measure prompt alignment before and after.",
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="For prompt alignment. The demo model's is enough; others need clip_vision too.",
                ),
                io.ClipVision.Input(
                    "clip_vision",
                    optional=True,
                    tooltip="Compares images. For prompt alignment: trained with the CLIP (ViT-bigG for SDXL, ViT-H "
                    "for SD2).",
                ),
                io.Combo.Input(options=Similarity, **nemo_inputs.SIMILARITY),
                io.String.Input(**nemo_inputs.SSCD_FILE),
                io.Image.Input(**nemo_inputs.GENERIC_IMAGES),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure", tooltip="Neurons by layer, z-scores, and similarity of all pairs of images."
                ),
                io.String.Output(display_name="report", tooltip="Numbers and caveats."),
                io.String.Output(display_name="table", tooltip="CSV: one line per neuron."),
                io.Image.Output(
                    display_name="sheet",
                    tooltip="The images in labeled rows: the reference, without the mask, with it, a generic prompt.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        mask,
        images_before=None,
        images_after=None,
        reference_image=None,
        prompt="",
        clip=None,
        clip_vision=None,
        similarity=Similarity.AUTO,
        sscd_file="",
        generic_images=None,
    ) -> io.NodeOutput:
        from . import image_similarity, neuron_figures, neuron_reports

        judge, embed = image_judge(similarity, sscd_file, clip_vision, clip)
        batches = {"before": images_before, "after": images_after}
        batches = {name: images for name, images in batches.items() if images is not None}
        measured = {
            name: image_similarity.compare_images(one, reference_image, embed, with_progress)
            for name, one in batches.items()
        }
        lines = [f"{mask.count} neurons in {len(mask.scales)} layers.", *mask.history]
        lines += [f"Similarity of images: {judge.name}."] if measured else []
        lines += [_similarity_line(name, found) for name, found in measured.items()]
        if len(measured) == 2:
            same = image_similarity.compare_pairs(images_before, images_after, embed).median()
            lines.append(f"Median similarity of the two images of a seed: {float(same):.3f}.")
        if batches:
            lines.append(_alignment_line(batches, prompt, clip, clip_vision))
        shown = batches if generic_images is None else {**batches, "generic prompt": generic_images}
        left, sheet = _sheet(shown, reference_image, embed, clip)
        lines += neuron_reports.remains_lines(left, mask)
        lines.append(neuron_reports.caveats())
        neuron_figures.plot_report(figure := new_figure(1200, 420), mask, measured)
        compared = _compared(images_before, images_after) if len(batches) == 2 else None
        table = interruptible(lambda: neuron_reports.mask_table(mask))
        return io.NodeOutput(to_image(figure), "\n".join(lines), table, sheet, ui=compared)


def _sheet(shown: dict, reference, embed, clip) -> tuple[dict[str, Remains], object]:
    """What each batch of images has of the reference, by name, and all of them in rows; nothing without images."""
    from . import image_similarity, neuron_figures

    if not shown:
        return {}, nothing_to_show()
    left = {}
    if reference is not None:
        read = image_reader(clip)
        left = {name: image_similarity.remains(one, reference, embed, read) for name, one in shown.items()}
    figure = new_figure(*neuron_figures.sheet_size(shown, reference))
    neuron_figures.plot_batches(figure, shown, left, reference)
    return left, to_image(figure)


def _compared(before, after):
    """The images of each seed without and with the mask, for ComfyUI's slider."""
    pairs = list(itertools.chain(*zip(before, after, strict=True)))
    labels = [f"{name} {number + 1}" for number in range(len(before)) for name in ("before", "after")]
    return to_compare(pairs, labels, shown=(0, 1))


def _similarity_line(name: str, found: ImageSimilarity) -> str:
    parts = []
    if found.sameness is not None:
        parts.append(f"median similarity between seeds {found.sameness:.3f}")
    if found.replication is not None:
        parts.append(f"median similarity to the reference {found.replication:.3f}")
    return f"{name.capitalize()}: {', '.join(parts) or 'a single image and no reference, nothing to compare'}."


def _alignment_line(batches: dict, prompt: str, clip, clip_vision) -> str:
    from ..common import prompt_alignment

    try:
        found = {name: prompt_alignment.measure(prompt, images, clip, clip_vision) for name, images in batches.items()}
    except prompt_alignment.AbsentError as error:
        return f"Prompt alignment: not measured, because {error}."
    means = ", ".join(f"{name} {float(one.values.mean()):.3f}" for name, one in found.items())
    return f"Prompt alignment ({next(iter(found.values())).what}): {means}, mean over the images."


NODES = [NeuronMaskEdit, SaveNeuronMask, LoadNeuronMask, NeuronReport, BakeNeuronMask]
