"""Neuron masks as things to combine, keep, share, look at and bake in."""

from __future__ import annotations

from comfy_api.latest import io

from ...host import agreement, output_files
from ...host.baked import with_scaled_rows
from ...host.figures import new_figure, to_image
from ...host.found_files import find, stamp
from ...host.schema import schema
from ...host.sockets import NeuronMask as Socket
from ...host.value_answers import fingerprint
from .. import chart, comparison, drawing, edits, inputs, mask_files, words
from ..layers import value_layers
from ..mask import CAVEATS, factors
from ..statistics import same_model

CATEGORY, PAPER = inputs.CATEGORY, inputs.PAPER
_OTHER_MODEL = "This mask was made with another checkpoint or LoRA: find its neurons again for this MODEL.\n"
_TWO_MODELS = "The two masks were found with different checkpoints or LoRAs: they do not belong together."
_WITH_OTHER = {edits.UNION: edits.union, edits.INTERSECTION: edits.intersection, edits.DROP: edits.drop}


class NeuronMaskEdit(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronMaskEdit",
            display_name="Neuron Mask Edit",
            category=CATEGORY,
            description="Combines two neuron masks, keeps the neurons found for most prompts or those that stood out "
                        "most, "
            f"drops or keeps named ones, or draws a random control of equal size beside them. {PAPER}, section 4.",
            search_aliases=["memorization", "nemo", "merge neuron masks", "random neurons"],
            inputs=[
                Socket.Input(**inputs.MASK),
                io.Combo.Input("operation", options=list(edits.OPERATIONS),
                               tooltip="Union, intersection and drop need the other mask; random control needs the "
                                       "MODEL."),
                io.Int.Input("count", default=10, min=1, max=100000,
                             tooltip="For most frequent and largest z: how many neurons to keep."),
                io.String.Input("names", default="", multiline=True,
                                tooltip="For keep named and drop named: one line a layer, such as input_blocks.1.1, "
                                        "with "
                                "neuron numbers behind it to choose: input_blocks.1.1 25, 221."),
                io.Int.Input("seed", default=0, min=0, max=inputs.SEED_MAX, control_after_generate=True,
                             tooltip="For random control: which neurons are drawn, never those of the mask itself."),
                Socket.Input("other", optional=True, tooltip="The second mask."),
                io.Model.Input("model", optional=True, tooltip="For random control: tells how many neurons there are."),
            ],
            outputs=[
                Socket.Output(display_name="mask", tooltip="The new mask; the given ones stay as they are."),
                io.String.Output(display_name="report", tooltip="How many neurons before and after, and what was "
                                                                "done."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, mask, operation, count, names, seed, other=None, model=None) -> io.NodeOutput:
        if operation in _WITH_OTHER:
            if other is None:
                raise ValueError(f"{operation.capitalize()} needs a second mask: connect it to other.")
            result = _WITH_OTHER[operation](mask, other)
        elif operation == edits.RANDOM:
            if model is None:
                raise ValueError("A random control needs to know how many neurons there are: connect the MODEL.")
            known = value_layers(model.model.diffusion_model)
            result = edits.random_control(mask, {layer.path: layer.width for layer in known}, seed)
        elif operation in (edits.FREQUENT, edits.STRONGEST):
            choose = edits.most_frequent if operation == edits.FREQUENT else edits.strongest
            result = choose(mask, count)
        else:
            result = edits.named(mask, names, keep=operation == edits.KEEP_NAMED)
        lines = [f"{mask.count} neurons before, {result.count} after.", *result.history]
        if other is not None and operation in _WITH_OTHER and not same_model(mask.fingerprint, other.fingerprint):
            lines.append(_TWO_MODELS)
        return io.NodeOutput(result, "\n".join(lines), ui={"glassbox_neurons": [chart.outline(mask)]})


class SaveNeuronMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SaveNeuronMask",
            display_name="Save Neuron Mask",
            category=CATEGORY,
            description="Writes a neuron mask as JSON that a person can read and share: layers, neurons, factors, "
                        "prompts, "
            f"scores, settings and what to know. {PAPER}. {CAVEATS[2]}",
            search_aliases=["memorization", "nemo", "export neuron mask"],
            inputs=[
                Socket.Input(**inputs.MASK),
                io.String.Input("filename_prefix", default="glassbox/neuron_mask",
                                tooltip="Prefix of the file in ComfyUI's output folder; may hold folders and %date%."),
            ],
            outputs=[
                io.String.Output(display_name="file", tooltip="Its path in the output folder, for Load Neuron Mask."),
                io.String.Output(display_name="text", tooltip="What the file says."),
            ],
            is_output_node=True,
        )  # fmt: skip

    @classmethod
    def execute(cls, mask, filename_prefix: str) -> io.NodeOutput:
        path = output_files.next_file(filename_prefix, ".json")
        mask_files.write(mask, path)
        return io.NodeOutput(output_files.relative(path), mask_files.to_text(mask))


class LoadNeuronMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadNeuronMask",
            display_name="Load Neuron Mask",
            category=CATEGORY,
            description="Reads a mask that Save Neuron Mask wrote, or the result table (.csv) of the official code, "
                        "whose "
            f"layers are SD1.x's. {PAPER}. {CAVEATS[2]}",
            search_aliases=["memorization", "nemo", "import neuron mask"],
            inputs=[
                io.String.Input("file", default="", tooltip="Path in ComfyUI's input or output folder: .json, or the "
                                "official .csv."),
                io.Model.Input("model", tooltip="The model that the mask is for; the mask is checked against its "
                                                "layers."),
            ],
            outputs=[
                Socket.Output(display_name="mask", tooltip="For NeMo Neuron Mask."),
                io.String.Output(display_name="table", tooltip="CSV: prompt, layer, neuron, factor, z, activation, "
                                                               "why."),
                io.String.Output(display_name="report", tooltip="How many neurons of how many prompts."),
            ],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, file: str | None = "", **_) -> str:
        """Changes with the file."""
        return stamp(file, "neuron mask")

    @classmethod
    def execute(cls, file: str, model) -> io.NodeOutput:
        path, known = find(file, "neuron mask"), value_layers(model.model.diffusion_model)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise ValueError(f"{path.name} is no text file: give a .json or .csv mask.") from None
        official = path.suffix.lower() == ".csv"
        mask = mask_files.from_official(text, known, path.name) if official else mask_files.from_text(text, path.name)
        factors(mask, known)
        shared = [path for path in mask.fingerprint if path in {layer.path for layer in known}]
        warning = "" if same_model(mask.fingerprint, fingerprint(model, shared)) else _OTHER_MODEL
        stalled = sum(not found.converged for found in mask.findings)
        report = (
            f"{mask.count} neurons in {len(mask.scales)} layers, of {len(mask.findings)} prompts ({stalled} searches "
        )
        return io.NodeOutput(mask, words.mask_table(mask), f"{warning}{report}stalled).\n{words.caveats()}")


class BakeNeuronMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_BakeNeuronMask",
            display_name="Bake Neuron Mask",
            category=CATEGORY,
            description="Scales the masked neurons' weight rows themselves, so that Save Checkpoint writes a model "
            "that "
            f"needs no mask. After LoRAs; for all of a run and for both prompts. {PAPER}, section 3. {CAVEATS[0]}",
            search_aliases=["memorization", "nemo", "prune neurons", "save masked checkpoint"],
            inputs=[
                io.Model.Input("model", tooltip="The model that the mask was made for, with its LoRAs."),
                Socket.Input(**inputs.MASK),
                io.Float.Input(**inputs.STRENGTH),
            ],
            outputs=[io.Model.Output(display_name="MODEL", tooltip="For any sampler, and for Save Checkpoint.")],
        )

    @classmethod
    def execute(cls, model, mask, strength: float) -> io.NodeOutput:
        changing = factors(mask, value_layers(model.model.diffusion_model), strength)
        return io.NodeOutput(with_scaled_rows(model, changing) if changing else model)


class NeuronReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NeuronReport",
            display_name="Neuron Report",
            category=CATEGORY,
            description="What a neuron mask is made of and what it did: neurons by layer, how they stood out, and "
                        "pictures "
            f"before and after compared with each other and with a picture that should not come back. {PAPER}, "
            "section 4. "
            f"{CAVEATS[0]}",
            search_aliases=["nemo", "memorization report", "replication", "diversity", "clip score"],
            inputs=[
                Socket.Input(**inputs.MASK),
                io.Image.Input("before", optional=True, tooltip="Pictures without the mask, of several seeds."),
                io.Image.Input("after", optional=True, tooltip="The same seeds with the mask."),
                io.Image.Input("reference", optional=True,
                               tooltip="The picture that should not come back (one that you may use)."),
                io.String.Input("prompt", default="", multiline=True, optional=True,
                                tooltip="The prompt of the pictures, to see how far they obey it before and after."),
                io.Clip.Input("clip", optional=True,
                              tooltip="With the prompt: the demo model's tells how much of it the judge sees; others "
                                      "need clip_vision too."),
                io.ClipVision.Input("clip_vision", optional=True,
                                    tooltip="Trained with that CLIP: ViT-bigG for SDXL, ViT-H for SD2."),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="Bars, z, and similarity of all pairs of pictures."),
                io.String.Output(display_name="report", tooltip="Numbers and what to know."),
                io.String.Output(display_name="table", tooltip="CSV: one line a neuron."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(
        cls, mask, before=None, after=None, reference=None, prompt="", clip=None, clip_vision=None
    ) -> io.NodeOutput:
        given = {name: images for name, images in (("before", before), ("after", after)) if images is not None}
        measured = {name: comparison.measure(images, reference) for name, images in given.items()}
        lines = [f"{mask.count} neurons in {len(mask.scales)} layers.", *mask.history]
        lines += [_line(name, found) for name, found in measured.items()]
        if len(measured) == 2:
            same = comparison.paired(before, after).median()
            lines.append(f"Median similarity of a seed's two pictures: {float(same):.3f}.")
        if given:
            lines.append(_obeyed(given, prompt, clip, clip_vision))
        figure = new_figure(1200, 420)
        _draw(figure, mask, measured)
        lines.append(words.caveats())
        return io.NodeOutput(to_image(figure), "\n".join(lines), words.mask_table(mask))


def _line(name: str, found: comparison.Measured) -> str:
    sameness = "" if found.sameness is None else f"median similarity between seeds {found.sameness:.3f}"
    replication = "" if found.replication is None else f"median similarity to the reference {found.replication:.3f}"
    told = ", ".join(filter(None, (sameness, replication))) or "a single picture and no reference: nothing to compare"
    return f"{name.capitalize()}: {told}."


def _obeyed(given: dict, prompt: str, clip, clip_vision) -> str:
    try:
        found = {name: agreement.measure(prompt, images, clip, clip_vision) for name, images in given.items()}
    except agreement.AbsentError as error:
        return f"Agreement with the prompt: absent, because {error}."
    means = ", ".join(f"{name} {float(one.values.mean()):.3f}" for name, one in found.items())
    return f"Agreement with the prompt ({next(iter(found.values())).what}): {means}, mean of the pictures."


def _draw(figure, mask, measured: dict[str, comparison.Measured]) -> None:
    z = [value for found in mask.findings for of in found.details.get("z", {}).values() for value in of.values()]
    matrices = {name: found for name, found in measured.items() if len(found.between) > 1}
    panels = figure.subplots(1, 1 + bool(z) + len(matrices), squeeze=False)[0]
    drawing.mask_bars(panels[0], mask)
    if z:
        drawing.z_values(panels[1], z)
    for axes, (name, found) in zip(panels[1 + bool(z) :], matrices.items(), strict=True):
        drawing.matrix(axes, figure, found.between.numpy(), f"{name}, median {found.sameness:.2f}")
