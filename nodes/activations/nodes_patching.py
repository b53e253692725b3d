"""Activation Patching: activations of one run in another, and the map of which of them carry the
difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..host.evaluate import sample_latents, timestep_of
from ..host.hooks import Receivers, hook_calls, observe, refuse_compiled
from ..host.image_output import new_figure, to_image
from ..host.latent_shapes import batched, split
from ..host.progress import with_progress
from ..host.schema import float_input, int_input, schema, seed
from ..host.sockets import ActivationRecording
from . import select_ids
from .activation_spec import ActivationSpec
from .select_ids import StepPredicate
from .tap_inputs import EDITABLE_PRESET, IDS, PRECISION, PRECISIONS, RESEARCH, STEER

if TYPE_CHECKING:
    from ..common.network_call import Call
    from ..host.socket_types import ModelPatcher
    from .patching import PatchingSettings
    from .recorder import Recorder, Run

_PAPER = "Activation patching (causal tracing, arXiv 2202.05262), at the IDs of arXiv 2410.03558"
_STEPS = {
    "id": "patched_steps",
    "default": "all",
    "tooltip": f"Steps to patch: {select_ids.STEPS_EXAMPLE}. Steps count from 0.",
}
_BEST = 5
_HEIGHT = 500
_TITLE = "Fraction of the first image that each patched activation restores"


class ActivationPatching(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationPatching",
            display_name="Activation Patching",
            category=STEER,
            description=(
                "Activation patching: replaces or mixes activations during sampling with "
                "activations of another run, recorded by Activation Recorder. Strength 0 is "
                f"identical to the input model. {_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "causal tracing",
                "feature injection",
                "plug and play",
                "swap features",
                "transfer layout",
            ],
            inputs=[
                io.Model.Input(
                    "model", tooltip="The recorded model, taken before Activation Recorder."
                ),
                ActivationRecording.Input(
                    "recording",
                    tooltip=(
                        "Recording of Activation Recorder, with every step to patch, rows both "
                        "and pool_size 1."
                    ),
                ),
                io.Latent.Input(
                    "latent",
                    tooltip=("Output of the recorded sampler; identifies the source run."),
                ),
                io.String.Input(
                    "ids",
                    default="*",
                    multiline=True,
                    tooltip=(
                        "Recorded IDs to patch: IDs or wildcards, separated by commas or line "
                        "breaks."
                    ),
                ),
                io.String.Input(**_STEPS),
                float_input(
                    "strength",
                    1.0,
                    (0.0, 1.0, 0.05),
                    "0 keeps the run's own activations, 1 replaces them with the recorded ones.",
                ),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="Area to patch, one mask for all images or one per image.",
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model", tooltip="The patched model, for the sampler."
                ),
                io.String.Output(display_name="report", tooltip="Patched IDs and steps."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        recording: Recorder,
        latent: dict,
        ids: str,
        patched_steps: str,
        strength: float,
        mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from .patching import PatchingSettings

        refuse_compiled(model)
        run = recording.run_of(latent["samples"])
        if len(run.snapshots) < len(run.recorded) or not run.snapshots:
            raise ValueError(
                "The recording holds no single steps. Turn off mean_only in Activation Recorder, "
                f"and record the steps to patch. {run.skipped_report()}".strip()
            )
        selects = select_ids.parse_steps(patched_steps)
        steps = [step for step in run.recorded if selects(step, run.steps)]
        if not steps:
            raise ValueError(
                f"No selected step was recorded: steps {', '.join(map(str, run.recorded))} of "
                f"{run.steps} are. Select one of them in patched_steps."
            )
        tensors = run.snapshots[0].activations.tensors
        selected = select_ids.match_ids(list(tensors), ids)
        specs = _editable(model, tensors, selected)
        report = "\n".join(
            [f"Patched steps {', '.join(map(str, steps))} of {run.steps}.", *selected]
        )
        if strength == 0 or (mask is not None and not mask.any()):
            return io.NodeOutput(
                model, f"Nothing is patched: the strength is 0 or the mask is empty.\n{report}"
            )
        return io.NodeOutput(
            _patched(
                model,
                run,
                specs=specs,
                selects=selects,
                settings=PatchingSettings(strength=strength, mask=mask),
            ),
            report,
        )


class ActivationPatchingMap(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_PatchingMap",
            advanced=("precision",),
            display_name="Activation Patching Map",
            category=RESEARCH,
            description=(
                "Causal tracing: samples two prompts from the same noise, then repeats the "
                "second with one activation at a time patched in from the first, and measures "
                f"how much of the first image each restores. {_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "causal tracing",
                "causal map",
                "which layer",
                "locate concept",
                "attribution",
            ],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="Model with a U-Net or a supported transformer, with its LoRAs.",
                ),
                io.Conditioning.Input(
                    "source_positive", tooltip="Source prompt of the activations."
                ),
                io.Conditioning.Input("positive", tooltip="Prompt of the patched runs."),
                io.Conditioning.Input("negative", tooltip="Negative prompt of all runs."),
                io.Latent.Input(
                    "latent",
                    tooltip="Empty latent; sets size and batch. Two to eight images.",
                ),
                io.Combo.Input(**EDITABLE_PRESET),
                io.String.Input(**IDS),
                io.String.Input(**_STEPS),
                seed("Seed of the noise, the same for all runs."),
                int_input("steps", 10, (1, 1000), "Sampling steps of each run (euler)."),
                float_input("cfg", 3.0, (1.0, 100.0, 0.1), "CFG scale."),
                io.Combo.Input(**PRECISION),
                io.Mask.Input(
                    "mask", optional=True, tooltip="Area in which the images are compared."
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip=("Restored fraction for each ID, in forward order."),
                ),
                io.Image.Output(
                    display_name="network_map",
                    tooltip="Restored fraction as colors on the network map.",
                ),
                io.String.Output(
                    display_name="report", tooltip="One line per activation: restored fraction."
                ),
                io.String.Output(
                    display_name="ids",
                    tooltip=(
                        f"The {_BEST} IDs that restore most, one per line, in descending order."
                    ),
                ),
                io.Latent.Output(
                    display_name="latent",
                    tooltip=(
                        "Images of the first prompt, of the second, then of each patched ID in "
                        "forward order."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        source_positive: list,
        positive: list,
        negative: list,
        latent: dict,
        preset: str,
        ids: str,
        patched_steps: str,
        seed: int,
        steps: int,
        cfg: float,
        precision: str,
        mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from . import activation_edit, catalog_table, catalog_unet, id_chart, patching

        refuse_compiled(model)
        every = catalog_unet.catalog(model.model.diffusion_model)
        specs = select_ids.select(every, preset, ids)
        activation_edit.editable_specs(
            {spec.id: spec.channels for spec in specs}, every, "selection"
        )
        recorder = _recorder(model, specs, select_ids.parse_steps(patched_steps), precision)

        def sample(patched: ModelPatcher, prompt: list) -> torch.Tensor:
            return sample_latents(
                patched,
                prompt,
                negative=negative,
                latent=latent["samples"],
                steps=steps,
                cfg=cfg,
                seed=seed,
            )

        source = sample(observe(model, recorder), source_positive)
        target = sample(model, positive)
        patched = _patched_one_by_one(
            model, recorder.run_of(source), specs, select_ids.parse_steps(patched_steps)
        )
        runs = {id_: sample(one, positive) for id_, one in patched}
        # Of video with sound the video counts, whose layers are patched.
        other = split(source)[0]
        own = split(target)[0]
        restored = {
            id_: patching.restored_fraction(split(latent)[0], other, own, mask)
            for id_, latent in runs.items()
        }
        best = id_chart.best(restored, _BEST)
        figure = new_figure(id_chart.chart_width(len(restored)), _HEIGHT)
        id_chart.draw_bars(figure, {_TITLE: restored}, best, 0.0)
        return io.NodeOutput(
            to_image(figure),
            catalog_table.value_map(every, restored),
            id_chart.table({"restored": restored}),
            "\n".join(best),
            {"samples": batched([source, target, *runs.values()])},
        )


def _editable(
    model: ModelPatcher, tensors: dict[str, torch.Tensor], selected: list[str]
) -> list[ActivationSpec]:
    """The specs of recorded IDs in a model; raises ValueError for those that it lacks or that
    cannot be changed.
    """
    from . import activation_edit
    from .catalog_unet import catalog

    channels = {id_: tensors[id_].shape[1] for id_ in selected}
    return activation_edit.editable_specs(
        channels, catalog(model.model.diffusion_model), "recording"
    )


def _patched_one_by_one(
    model: ModelPatcher, run: Run, specs: list[ActivationSpec], selects: StepPredicate
) -> Iterator[tuple]:
    """ID and clone of a MODEL of which this one activation is that of a recorded run, with
    ComfyUI's progress.
    """
    from .patching import PatchingSettings

    run.require_recorded("Select other steps.")
    for spec in with_progress(specs):
        yield (
            spec.id,
            _patched(model, run, specs=[spec], selects=selects, settings=PatchingSettings()),
        )


def _recorder(
    model: ModelPatcher, specs: list[ActivationSpec], selects: StepPredicate, precision: str
) -> Recorder:
    """A recorder of activations in both conditionings."""
    from .recorder import Recorder
    from .tap import TapSettings

    settings = TapSettings(unconditional=True, dtype=PRECISIONS[precision])
    return Recorder(specs, settings, selects, lambda sigma: timestep_of(model, sigma))


def _patched(
    model: ModelPatcher,
    run: Run,
    specs: list[ActivationSpec],
    selects: StepPredicate,
    settings: PatchingSettings,
) -> ModelPatcher:
    """A clone of a MODEL whose activations are those of a recorded run, in the selected steps that
    it has.

    Sampling raises ValueError for another number of steps than that of the recorded run.
    """
    from . import activation_edit
    from .patching import kinds_of, patch

    sources = {snapshot.step: snapshot.activations for snapshot in run.snapshots}

    def calling(call: Call) -> Receivers | None:
        step, steps = call.step
        if steps != run.steps:
            raise ValueError(
                f"The recorded run has {run.steps} steps, and this one {steps}. Sample both with "
                "the same number of steps."
            )
        if step not in sources or not selects(step, steps):
            return None
        edit = patch(sources[step], settings)
        kinds = kinds_of(sources[step])
        return activation_edit.CallEdit(
            specs, edit, lambda part: part.side in kinds, call
        ).receivers()

    return hook_calls(model, calling)


NODES = [ActivationPatching, ActivationPatchingMap]
