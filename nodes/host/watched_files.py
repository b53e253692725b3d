"""Files behind inputs: what ComfyUI's cache must know of them beside their names.

A node says in ``READS`` which of its inputs name files, each with a function from the name to a
stamp that changes with them and is empty for a value that names none, and in ``WRITES`` which one
names a file of its own, with a function to its path. The texts of every node with a CLIP are
watched for embeddings, without being named.

ComfyUI tells what comes by wire only when the node runs, and its cache knows nodes by their inputs
and those of the nodes before them, not by their ids. So a wire is known by its origin, a digest of
the nodes that it comes from without their ids, and the names that ever came from an origin are
watched from then on. A result in the cache was made with a name of its origin, so its file is
among them, whichever node of whatever prompt read it. A name that is seen for the first time makes
the node run once more at the next queue, since the stamps of its origin have grown.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comfy_api.latest import io
from comfy_execution.graph_utils import is_link
from comfy_execution.progress import get_progress_state
from comfy_execution.utils import get_executing_context

from .folders import embedding_stamp

#: Gives a file's stamp by its name: a text that changes with the file, "" where no file is named.
Stamp = Callable[[str], str]
#: The reading node's id in menus, its input, and the digest of the nodes that the wire comes from.
Origin = tuple[str, str, str]

#: Nodes of ComfyUI whose output is the text in their widget "value".
_CONSTANTS = ("PrimitiveString", "PrimitiveStringMultiline")

#: Files that nodes have written since this process began.
_written_here: set[Path] = set()
#: All names of files that have ever come by wire, by the origin of the wire.
_names_by_origin: dict[Origin, set[str]] = {}
#: The file that was written last under a name that came by wire, by the origin of the wire.
_last_path_by_origin: dict[Origin, Path] = {}


def with_watched_files(node: type[io.ComfyNode]) -> type[io.ComfyNode]:
    """The node class, which now runs again when a file it reads has changed or its own is gone."""
    schema = node.define_schema()
    reads: dict[str, Stamp] = {**_texts(schema), **getattr(node, "READS", {})}
    writes: dict[str, Callable[[str], Path]] = getattr(node, "WRITES", {})
    if not reads and not writes:
        return node
    execute = node.execute.__func__

    def fingerprint_inputs(cls: type, **given: Any) -> str | float:
        stamps: list[str] = []
        expected: list[Path] = []  # files of this node, without which it runs again
        try:
            for name, stamp in reads.items():
                values = _values_or_origin(name, given)
                if isinstance(values, str):
                    values = sorted(_names_by_origin.get((schema.node_id, name, values), ()))
                stamps += [_stamp(stamp, value) for value in values]
            for name, path_of in writes.items():
                values = _values_or_origin(name, given)
                if isinstance(values, str):
                    last_path = _last_path_by_origin.get((schema.node_id, name, values))
                    expected += [] if last_path is None else [last_path]
                else:
                    expected += [path for path in _paths(path_of, values) if path in _written_here]
        except LookupError:
            return float("nan")
        return "\n".join(stamps) if all(path.exists() for path in expected) else float("nan")

    @functools.wraps(execute)
    def execute_and_note(cls: type, *args: Any, **given: Any) -> Any:
        for name, stamp in reads.items():
            names = [value for value in _values(given.get(name)) if _stamp(stamp, value)]
            if names and (origin := _origin(schema.node_id, name)) is not None:
                _names_by_origin.setdefault(origin, set()).update(names)
        result = execute(cls, *args, **given)
        for name, path_of in writes.items():
            for path in filter(Path.exists, _paths(path_of, _values(given.get(name)))):
                _written_here.add(path)
                if (origin := _origin(schema.node_id, name)) is not None:
                    _last_path_by_origin[origin] = path
        return result

    node.fingerprint_inputs = classmethod(fingerprint_inputs)
    node.execute = classmethod(execute_and_note)
    return node


def _texts(schema: io.Schema) -> dict[str, Stamp]:
    """The text inputs of a node that may encode them: those of a node with a CLIP."""
    if not any(field.get_io_type() == "CLIP" for field in schema.inputs):
        return {}
    texts = [field.id for field in schema.inputs if isinstance(field, io.String.Input)]
    return dict.fromkeys(texts, embedding_stamp)


def _values_or_origin(name: str, given: dict) -> list | str:
    """The values of an input where the prompt has them, else the origin of its wire.

    Errors as ``_source``.
    """
    values = _values(given.get(name, ""))
    return _source(name) if None in values else values


def _values(given: object) -> list:
    """The values of an input, of which nodes that take lists have several."""
    return list(given) if isinstance(given, list | tuple) else [given]


def _origin(node: str, name: str) -> Origin | None:
    """The origin of an input of the running node; None for a literal and outside of a prompt."""
    try:
        source = _source(name)
    except LookupError:
        return None
    return (node, name, source) if isinstance(source, str) else None


def _source(name: str) -> str | list:
    """The origin of the wire into an input of the running node, or its values in the prompt.

    Raises LookupError where the prompt is not at hand.
    """
    running = get_executing_context()
    state = get_progress_state()
    if running is None or state.prompt_id != running.prompt_id:
        raise LookupError("No prompt is running.")
    prompt = state.dynprompt
    if not prompt.has_node(running.node_id):
        raise LookupError("The node is not in the prompt.")
    value = prompt.get_node(running.node_id)["inputs"].get(name)
    passed: set[str] = set()
    while is_link(value):
        source, slot = value
        if source in passed:
            raise LookupError("The wire comes from itself.")
        passed.add(source)
        if not prompt.has_node(source):
            raise LookupError("The wire comes from no node.")
        node = prompt.get_node(source)
        if node["class_type"] not in _CONSTANTS or "value" not in node["inputs"]:
            return f"{_digest(prompt, source, {})} {slot}"
        value = node["inputs"]["value"]
    return _values(value)


def _digest(prompt: Any, node_id: str, digests: dict[str, str]) -> str:
    """A digest of a node and all nodes before it, without their ids.

    ``digests``: those made so far by node id, so that each node is read once.
    """
    if node_id not in digests:
        digests[node_id] = "circle"
        node: dict = {"class_type": "", "inputs": {}}
        if prompt.has_node(node_id):
            node = prompt.get_node(node_id)
        inputs: dict[str, object] = {}
        for name, value in node["inputs"].items():
            inputs[name] = {"value": value}
            if is_link(value):
                inputs[name] = [_digest(prompt, value[0], digests), value[1]]
        text = json.dumps([node["class_type"], inputs], sort_keys=True, default=repr)
        digests[node_id] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return digests[node_id]


def _stamp(stamp: Stamp, name: object) -> str:
    try:
        return stamp(name) if isinstance(name, str) else ""
    except (ValueError, TypeError, OSError):
        return "absent"


def _paths(path_of: Callable[[str], Path], values: list) -> list[Path]:
    paths = []
    for value in values:
        with contextlib.suppress(ValueError):
            if isinstance(value, str) and value.strip():
                paths.append(path_of(value))
    return paths
