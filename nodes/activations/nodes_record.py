"""Record activations while any sampler runs, and get them afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..host.evaluate import timestep_of
from ..host.hooks import observe, refuse_compiled
from ..host.schema import int_input, schema
from ..host.sockets import ActivationRecording
from ..host.sockets import Activations as ActivationsSocket
from . import select_ids
from .tap_inputs import IDS, MEASURE, PAPER, POOL_SIZE, PRECISION, PRECISIONS, PRESET, Rows

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher
    from .recorder import Recorder


class ActivationRecorder(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationRecorder",
            display_name="Activation Recorder",
            category=MEASURE,
            description=(
                "Records activations while any sampler runs on the returned MODEL; images stay "
                f"bit-identical. Get Recorded Activations returns them afterwards. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "hook",
                "record features",
                "capture during sampling",
                "activations of every step",
            ],
            inputs=[
                io.Model.Input("model", tooltip="Model with a U-Net or a supported transformer."),
                io.Combo.Input(**PRESET),
                io.String.Input(**IDS),
                io.String.Input(
                    "recorded_steps",
                    default="last",
                    tooltip=f"Steps to record: {select_ids.STEPS_EXAMPLE}. Steps count from 0.",
                ),
                io.Combo.Input(
                    "rows",
                    options=[rows.value for rows in Rows],
                    tooltip=(
                        "Rows to record: positive conditioning, negative (absent at CFG 1), or "
                        "both."
                    ),
                ),
                io.Int.Input(**POOL_SIZE),
                io.Combo.Input(**PRECISION),
                io.Boolean.Input(
                    "mean_only",
                    default=False,
                    tooltip=(
                        "Store the mean over the recorded steps instead of each step. Needs the "
                        "memory of one step; use it for Token Heat Map."
                    ),
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model", tooltip="The recording model, for the sampler."
                ),
                ActivationRecording.Output(
                    display_name="recording", tooltip="For Get Recorded Activations."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        preset: str,
        ids: str,
        recorded_steps: str,
        rows: str,
        pool_size: int,
        precision: str,
        mean_only: bool = False,
    ) -> io.NodeOutput:
        from .catalog_unet import catalog
        from .recorder import Recorder
        from .tap import TapSettings

        refuse_compiled(model)
        selected = select_ids.select(catalog(model.model.diffusion_model), preset, ids)
        settings = TapSettings(
            conditional=rows != Rows.UNCONDITIONAL,
            unconditional=rows != Rows.CONDITIONAL,
            pool_size=pool_size,
            dtype=PRECISIONS[precision],
        )
        selects = select_ids.parse_steps(recorded_steps)
        recorder = Recorder(
            specs=selected,
            settings=settings,
            selects=selects,
            timestep_of=lambda sigma: timestep_of(model, sigma),
            mean_only=mean_only,
        )
        return io.NodeOutput(observe(model, recorder), recorder)


class GetRecordedActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ReadActivations",
            display_name="Get Recorded Activations",
            category=MEASURE,
            description=(
                "Returns the activations recorded by Activation Recorder in the sampling run of "
                f"a latent. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "recorded features",
                "read activations",
                "activations of a step",
                "recording",
            ],
            inputs=[
                ActivationRecording.Input("recording", tooltip="Recording of Activation Recorder."),
                io.Latent.Input(
                    "latent",
                    tooltip=(
                        "The sampler's own output; identifies the run and ensures it has finished."
                    ),
                ),
                int_input(
                    "step_index",
                    0,
                    (-1000, 1000),
                    "Index among the recorded steps: 0 is the first, -1 the last.",
                ),
                io.Boolean.Input(
                    "average",
                    default=False,
                    optional=True,
                    tooltip=(
                        "Return the mean over all recorded steps instead of one; use it for "
                        "Token Heat Map."
                    ),
                ),
            ],
            outputs=[
                ActivationsSocket.Output(
                    display_name="activations",
                    tooltip="Conditional rows first, then unconditional rows.",
                ),
                io.Int.Output(display_name="step", tooltip="Step number in its run, from 0."),
                io.String.Output(
                    display_name="report",
                    tooltip="Recorded steps, then one line per activation: ID, shape, type.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls, recording: Recorder, latent: dict, step_index: int, average: bool = False
    ) -> io.NodeOutput:
        run = recording.run_of(latent["samples"])
        count = len(run.snapshots)
        run.require_recorded(
            "Select other steps in Activation Recorder, or conditional rows if CFG is 1."
        )
        if not average and not -count <= step_index < count:
            raise ValueError(
                f"There is no recorded step {step_index}: the run has {count}. Use 0 to "
                f"{count - 1}, or -1 for the last."
            )
        snapshot = run.snapshots[-1 if average else step_index]
        activations = run.average() if average else snapshot.activations
        recorded = ", ".join(map(str, run.recorded))
        which = "their mean" if average or len(run.recorded) > count else f"step {snapshot.step}"
        lines = [
            f"Recorded steps {recorded} of {run.steps}. This is {which}.",
            run.skipped_report(),
            activations.report(),
        ]
        report = "\n".join(filter(None, lines))
        return io.NodeOutput(activations, snapshot.step, report)


NODES = [ActivationRecorder, GetRecordedActivations]
