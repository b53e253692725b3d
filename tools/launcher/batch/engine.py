"""A ComfyUI inside this process, without a server: it converts a saved canvas and runs prompts one
after another.

ComfyUI keeps the outputs of nodes whose inputs have not changed, so what does not depend on the
list (checkpoints, text encoders, a trained segmenter) is made once in a process. Nodes that write
files run for every piece.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import boot, paths, workflow
from ..api import failure, refusal
from ..errors import LaunchError
from ..server import cpu_arguments
from ..widgets import all_inputs
from .lists import digest
from .worker import PieceError, Place

_MODELS = {".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf"}
_SAVES = "filename_prefix"  # an input of nodes that write files where it is not empty
_MARK = "glassbox_piece"
_NOTES = paths.CACHE / "digests.json"


class Engine:
    """ComfyUI in this process; one can be started in a process."""

    def __init__(self, place: Place):
        self._place = place
        _start(place)
        import execution
        import folder_paths

        import nodes

        self._classes, self._folders, self._execution = (
            nodes.NODE_CLASS_MAPPINGS,
            folder_paths,
            execution,
        )
        self._titles = nodes.NODE_DISPLAY_NAME_MAPPINGS
        _load_nodes(nodes)
        cache, limits = execution.CacheType.CLASSIC, {"lru": 0, "ram": 1.0, "ram_inactive": 1.0}
        self._executor = execution.PromptExecutor(_server(), cache_type=cache, cache_args=limits)

    @property
    def roots(self) -> list[Path]:
        """The folders that nodes name files of: ComfyUI's input folder, then those of models."""
        models = [
            folder
            for folders, _ in self._folders.folder_names_and_paths.values()
            for folder in folders
        ]
        return [
            Path(folder) for folder in dict.fromkeys([self._folders.get_input_directory(), *models])
        ]

    def prompt(self, saved: dict) -> dict:
        """The prompt of a saved canvas, or of a file in API form; raises LaunchError for anything
        else.
        """
        if isinstance(saved.get("nodes"), list):
            return workflow.to_prompt(
                saved, self._info({node["type"] for node in _all_nodes(saved)})
            )
        if saved and all(
            isinstance(node, dict) and "class_type" in node for node in saved.values()
        ):
            unknown = {node["class_type"] for node in saved.values()} - self._classes.keys()
            if unknown:
                raise LaunchError(
                    f"ComfyUI does not know the node {min(unknown)}: install the pack it belongs "
                    "to."
                )
            return {str(id_): node for id_, node in saved.items()}
        raise LaunchError(
            "The file is neither a saved canvas nor a workflow in API form: save it again."
        )

    def kinds(self, prompt: dict) -> dict[str, dict[str, str]]:
        """Type by input name, by class, of the prompt's nodes; with all inputs that dynamic combos
        may show.
        """
        info = self._info({node["class_type"] for node in prompt.values()})
        return {
            name: {input_.name: input_.value_kind for input_ in all_inputs(one)}
            for name, one in info.items()
        }

    def files(self, prompt: dict) -> dict[str, str]:
        """Digests of the files that a prompt's inputs name: models, demo worlds, and files of the
        input folder.
        """
        values = {
            value
            for node in prompt.values()
            for value in node["inputs"].values()
            if isinstance(value, str)
        }
        found = {value: path for value in sorted(values) if (path := self._file(value))}
        notes = _Digests(_NOTES)
        return {value: notes.of(path) for value, path in found.items()}

    def run(self, prompt: dict, key: str, output: Path) -> dict:
        """Run a prompt with ``output`` as ComfyUI's output folder; the texts that nodes show, by
        node id.

        The folder must be the same for every run: ComfyUI's own nodes keep its name. Raises
        PieceError when the prompt is refused or fails.
        """
        import torch

        for node in prompt.values():
            if self._writes(node):
                node["inputs"][_MARK] = (
                    key  # unlike any other piece's: it runs, whatever is kept of earlier ones
                )
        self._folders.set_output_directory(str(output))
        temporary = output.with_name(f"{output.name}.temp")  # previews
        shutil.rmtree(temporary, ignore_errors=True)
        self._folders.set_temp_directory(str(temporary))
        torch.manual_seed(0)  # for nodes without a seed of their own
        valid, error, outputs, problems = asyncio.run(
            self._execution.validate_prompt(key, prompt, None)
        )
        if not valid or problems:
            raise PieceError(
                refusal(json.dumps({"error": error, "node_errors": problems}, default=str).encode())
            )
        self._executor.execute(prompt, key, {}, outputs)
        if not self._executor.success:
            status = {"status_str": "error", "messages": self._executor.status_messages}
            raise PieceError(failure({"status": status}))
        shown = self._executor.history_result["outputs"]
        return {
            id_: [str(text) for text in ui["text"]]
            for id_, ui in sorted(shown.items())
            if ui.get("text")
        }

    def _writes(self, node: dict) -> bool:
        return bool(node["inputs"].get(_SAVES)) or getattr(
            self._classes[node["class_type"]], "OUTPUT_NODE", False
        )

    def _info(self, classes: set[str]) -> dict:
        """What /object_info holds of these classes, as far as inputs and names go."""
        found = {}
        for name in classes & self._classes.keys():
            about = {
                "input": self._classes[name].INPUT_TYPES(),
                "display_name": self._titles.get(name),
            }
            found[name] = json.loads(json.dumps(about, default=str))
        return found

    def _file(self, value: str) -> Path | None:
        if not value or "\n" in value or len(value) > 1000:
            return None
        if Path(value).suffix.lower() in _MODELS:
            for kind in self._folders.folder_names_and_paths:
                if path := self._folders.get_full_path(kind, value):
                    return Path(path)
        for root in (paths.ROOT / "assets", self.roots[0]):
            path = (root / value).resolve()
            if path != root.resolve() and path.is_relative_to(root.resolve()) and path.exists():
                return path
        return None


class _Digests:
    """Digests of large files, noted with their size and time so that a checkpoint is read once on a
    machine.
    """

    def __init__(self, path: Path):
        self._path = path
        try:
            self._known = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            self._known = {}

    def of(self, path: Path) -> str:
        if path.is_dir():
            return digest(path)
        about = path.stat()
        numbers = (about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
        stamp = " ".join(map(str, (path.resolve(), *numbers)))
        if stamp not in self._known:
            self._known[stamp] = digest(path)
            partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(self._known), "utf-8")
            partial.replace(self._path)
        return self._known[stamp]


def _all_nodes(saved: dict) -> Sequence[dict]:
    inside = (saved.get("definitions") or {}).get("subgraphs") or ()
    return [*saved["nodes"], *(node for one in inside for node in one.get("nodes") or ())]


def _start(place: Place) -> None:
    """Let this process import ComfyUI with the arguments that its main.py would have had."""
    if place.threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(place.threads)
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != paths.ROOT]
    sys.path.insert(0, str(place.comfyui))
    import comfy.options

    comfy.options.enable_args_parsing()
    sys.argv = ["batch", *_arguments(place)]
    if not place.cpu:
        import cuda_malloc  # noqa: F401  chooses torch's allocator, so before torch
    boot.prepare(place.comfyui, place.cpu)
    import comfy.utils
    import torch

    comfy.utils.PROGRESS_BAR_ENABLED = False  # the job has a bar of its own
    if place.threads:
        torch.set_num_threads(place.threads)
    import folder_paths
    from utils.extra_config import load_extra_path_config

    if place.inputs:
        folder_paths.set_input_directory(str(place.inputs))
    extra = place.comfyui / "extra_model_paths.yaml"
    if extra.is_file():
        load_extra_path_config(str(extra))


def _arguments(place: Place) -> list[str]:
    arguments = [
        "--base-directory",
        str(place.base),
        "--disable-metadata",
        "--disable-api-nodes",
        "--database-url",
        "sqlite:///:memory:",
        "--front-end-root",
        str(place.base),
        *(cpu_arguments(place.arguments) if place.cpu else ()),
        *place.arguments,
    ]
    if place.inputs:
        arguments += ["--input-directory", str(place.inputs)]
    return arguments


def _server():
    """ComfyUI's server object, which nodes look for: it listens nowhere, and what they send to it
    goes nowhere.
    """
    from server import PromptServer

    PromptServer.instance.send_sync = lambda *_: None
    return PromptServer.instance


def _load_nodes(nodes) -> None:
    """ComfyUI's nodes, the packs beside them, and this pack, wherever it lies."""
    from server import PromptServer

    PromptServer(asyncio.new_event_loop())
    asyncio.run(nodes.init_extra_nodes(init_custom_nodes=True, init_api_nodes=False))
    if not any(name.startswith("GBX_") for name in nodes.NODE_CLASS_MAPPINGS):
        asyncio.run(nodes.load_custom_node(str(paths.ROOT), module_parent="custom_nodes"))
