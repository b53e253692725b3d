"""Save and load activations."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from comfy_api.latest import io

from ..host.folders import existing_file, next_file, output_stamp, relative
from ..host.schema import schema
from ..host.sockets import Activations as ActivationsSocket
from .activations import Activations
from .tap_inputs import FILES, PAPER


class FileFormat(StrEnum):
    """Values of the ``format`` input."""

    SAFETENSORS = "safetensors"
    NPZ = "npz"


class SaveActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SaveActivations",
            display_name="Save Activations",
            category=FILES,
            description=(
                "Saves activations with their IDs, rows and settings to one .safetensors file, or "
                f"exports them to NumPy. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "export features",
                "write safetensors",
                "numpy",
                "npz",
            ],
            is_output_node=True,
            inputs=[
                ActivationsSocket.Input(
                    "activations", tooltip="Activations of a tap or recording."
                ),
                io.String.Input(
                    "filename_prefix",
                    default="glassbox/activations",
                    tooltip="Folder and name inside ComfyUI's output folder. A number is appended.",
                ),
                io.Combo.Input(
                    "format",
                    options=[value.value for value in FileFormat],
                    tooltip=(
                        "safetensors: for Load Activations. npz: for numpy.load, one array per ID."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(
                    display_name="file", tooltip="Path inside ComfyUI's output folder."
                )
            ],
        )

    @classmethod
    def execute(
        cls, activations: Activations, filename_prefix: str, format: str = FileFormat.SAFETENSORS
    ) -> io.NodeOutput:
        from . import activations_file

        path = next_file(filename_prefix, f".{format}")
        write = activations_file.write_npz if format == FileFormat.NPZ else activations_file.write
        write(activations, path)
        return io.NodeOutput(relative(path))


class LoadActivations(io.ComfyNode):
    READS: ClassVar = {"file": output_stamp}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadActivations",
            display_name="Load Activations",
            category=FILES,
            description=f"Loads a file saved by Save Activations. {PAPER}.",
            search_aliases=[
                "diffusion features",
                "import features",
                "read safetensors",
                "open features",
                "activations file",
            ],
            inputs=[
                io.String.Input(
                    "file",
                    default="glassbox/activations_00001_.safetensors",
                    tooltip="Path inside ComfyUI's output folder, as returned by Save Activations.",
                ),
            ],
            outputs=[
                ActivationsSocket.Output(
                    display_name="activations", tooltip="The saved activations."
                ),
                io.String.Output(
                    display_name="report", tooltip="One line per activation: ID, shape, type."
                ),
            ],
        )

    @classmethod
    def execute(cls, file: str) -> io.NodeOutput:
        from . import activations_file

        activations = activations_file.read(existing_file(file))
        return io.NodeOutput(activations, activations.report())


NODES = [SaveActivations, LoadActivations]
