"""Save activations and load them again."""

from __future__ import annotations

from comfy_api.latest import io

from ...host.output_files import existing_file, next_file, relative
from ...host.schema import schema
from ...host.sockets import Activations
from .. import files
from ..features import Activations as Tapped
from ..inputs import CATEGORY, PAPER


class SaveActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SaveActivations",
            display_name="Save Activations",
            category=CATEGORY,
            description=f"Writes activations with their IDs, rows and settings to one .safetensors file. {PAPER}.",
            search_aliases=["diffusion features", "export features", "write safetensors"],
            is_output_node=True,
            inputs=[
                Activations.Input("activations", tooltip="Tapped or recorded activations."),
                io.String.Input(
                    "filename_prefix",
                    default="glassbox/activations",
                    tooltip="Folder and name inside ComfyUI's output folder; a number is added.",
                ),
            ],
            outputs=[
                io.String.Output(display_name="file", tooltip="Path of the file inside ComfyUI's output folder."),
            ],
        )

    @classmethod
    def execute(cls, activations: Tapped, filename_prefix: str) -> io.NodeOutput:
        path = next_file(filename_prefix, ".safetensors")
        files.write(activations, path)
        return io.NodeOutput(relative(path))


class LoadActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadActivations",
            display_name="Load Activations",
            category=CATEGORY,
            description=f"Reads a file that Save Activations has written. {PAPER}.",
            search_aliases=["diffusion features", "import features", "read safetensors"],
            inputs=[
                io.String.Input(
                    "file",
                    default="glassbox/activations_00001_.safetensors",
                    tooltip="Path inside ComfyUI's output folder, as Save Activations gives it.",
                ),
            ],
            outputs=[
                Activations.Output(display_name="activations", tooltip="As they were saved."),
                io.String.Output(display_name="report", tooltip="One line an activation: ID, shape, type."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, file: str | None) -> str:
        """Changes with the file; a linked path arrives as None and is watched through its own node."""
        if file is None:
            return ""
        try:
            about = existing_file(file).stat()
        except ValueError:
            return "absent"
        return f"{about.st_mtime_ns} {about.st_size}"

    @classmethod
    def execute(cls, file: str) -> io.NodeOutput:
        activations = files.read(existing_file(file))
        return io.NodeOutput(activations, activations.report())
