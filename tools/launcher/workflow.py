"""Turns a workflow as the canvas saves it into a prompt as ComfyUI's queue takes it, without a
browser.

It does what the front end does when Run is pressed; subgraphs are flattened. One thing only a
browser can do, and asking for it raises `WorkflowError`: choosing at random in a text such as
{red|blue}.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path

from . import paths
from .errors import LaunchError
from .subgraphs import as_list, flattened
from .widgets import Widget, dynamic_combos, inputs, widgets

_MUTED, _BYPASSED = 2, 4
_PRIMITIVE = "PrimitiveNode"
_VIRTUAL = frozenset({_PRIMITIVE, "Reroute", "Note", "MarkdownNote"})  # live on the canvas only
_REGISTERED = "Node name for S&R"  # a property of every node that a server has registered
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CHOICE = re.compile(r"(?<!\\)\{")


class WorkflowError(LaunchError):
    """A workflow that cannot be turned into a prompt; its text says why and what to do."""


def load(path: Path) -> dict:
    """Read a saved canvas workflow; raises WorkflowError when the file is not one."""
    try:
        workflow = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise WorkflowError(f"The workflow {path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise WorkflowError(
            f"{path.name} is no JSON file ({error}): save the workflow again."
        ) from error
    if not isinstance(workflow, dict) or not isinstance(workflow.get("nodes"), list):
        raise WorkflowError(
            f"{path.name} is no saved canvas: use Save, not Export (API), in ComfyUI's menu."
        )
    return workflow


class Kind(StrEnum):
    """What a workflow of the pack is for; its file says so in ``extra``, and by that it is known as
    the pack's.
    """

    DEMO = "demo"  # runs on the demo model, which comes with the pack
    CHECKPOINT = "checkpoint"  # needs files that a person has
    RESEARCH = "research"  # shows a paper's claim, for those who want to see how it was measured
    BLUEPRINT = "blueprint"  # a subgraph that people put into workflows of their own


def kind_of(workflow: dict) -> Kind | None:
    """The kind of a saved canvas, or None for one that is not the pack's."""
    own = (workflow.get("extra") or {}).get("glassbox")
    found = own.get("kind") if isinstance(own, dict) else None
    return Kind(found) if found in [*Kind] else None


def own(*kinds: Kind, further: bool = True) -> dict[str, Path]:
    """The pack's workflows of some kinds by their short names: those of the template browser first,
    as it sorts them.

    ``further``: with those that it does not show.
    """
    folders = (paths.WORKFLOWS, paths.FURTHER_WORKFLOWS) if further else (paths.WORKFLOWS,)
    files = [path for folder in folders for path in sorted(folder.glob("*.json"))]
    return {name_of(saved): path for path in files if kind_of(saved := load(path)) in kinds}


def name_of(workflow: dict) -> str:
    """The short name of a saved canvas of the pack, whose file may have a title for its name."""
    return workflow["extra"]["glassbox"]["name"]


def seconds_of(workflow: dict) -> float | None:
    """How long a run of the pack's saved canvas takes on two quiet CPU cores, where it says so."""
    return workflow["extra"]["glassbox"].get("seconds")


def to_prompt(workflow: dict, object_info: dict) -> dict:
    """The API prompt of a saved canvas workflow; `object_info` is what ComfyUI answers at
    /object_info.
    """
    try:
        graph = _Graph(flattened(workflow), object_info)
    except ValueError as error:
        raise WorkflowError(str(error)) from None
    prompt = {
        str(node["id"]): _entry(graph, node, _described(node, object_info))
        for node in graph.nodes.values()
        if not graph.is_virtual(node) and node.get("mode") not in (_MUTED, _BYPASSED)
    }
    for entry in prompt.values():
        entry["inputs"] = {
            name: value
            for name, value in entry["inputs"].items()
            if not _is_dead_link(value, prompt)
        }
    return prompt


def _is_dead_link(value: object, prompt: dict) -> bool:
    return isinstance(value, list) and value[0] not in prompt


def _described(node: dict, object_info: dict) -> dict:
    info = object_info.get(node["type"])
    if info is None:
        raise WorkflowError(
            f"ComfyUI does not know the node {_named(node)}: install or update the pack it belongs "
            "to."
        )
    unfit = next((input_.name for input_ in inputs(info) if input_.needs_browser), None)
    if unfit:
        raise WorkflowError(
            f"The input {unfit} of {_named(node)} needs a browser: queue this workflow on the "
            "canvas."
        )
    return info


def _entry(graph: _Graph, node: dict, info: dict) -> dict:
    """One node of the prompt: values of its widgets, overridden by primitives and by links."""
    _check_kinds(graph, node, info)
    values = _widget_values(node, info, graph.primitive_values(node))
    filled = {
        name: {"__value__": value} if isinstance(value, list) else value
        for name, value in values.items()
    }
    for number, slot in enumerate(node.get("inputs") or ()):
        origin = graph.origin(slot) or graph.sent(node, number)
        if origin is not None:
            filled[slot["name"]] = origin
    lacking = [
        name for name in (info.get("input") or {}).get("required") or {} if name not in filled
    ]
    if lacking and graph.broadcasts:
        raise WorkflowError(
            f"The input {lacking[0]} of {_named(node)} has no wire, and a node of this canvas "
            "sends values without wires: export the workflow there with Export (API)."
        )
    title = node.get("title") or info.get("display_name") or node["type"]
    return {"inputs": filled, "class_type": node["type"], "_meta": {"title": title}}


def _check_kinds(graph: _Graph, node: dict, info: dict) -> None:
    """Raise WorkflowError where a saved value may belong to an input of a kind that is not known.

    The canvas saves a slot for every socket, so an input without one is a widget. Where the file
    holds more values than the known widgets take, some of them are its own, and it is not known
    which.
    """
    saved = node.get("widgets_values") or ()
    if len(saved) <= len(widgets(info, saved)):
        return
    slots = {slot["name"].partition(".")[0] for slot in node.get("inputs") or ()}
    for input_ in inputs(info):
        is_socket = input_.name in slots or graph.is_socket(input_.kind)
        if not (is_socket or input_.is_widget or input_.options.get("forceInput")):
            raise WorkflowError(
                f"The input {input_.name} of {_named(node)} is of a kind ({input_.kind}) that only "
                "the canvas knows: export the workflow there with Export (API)."
            )


def _widget_values(node: dict, info: dict, primitives: dict[str, object]) -> dict:
    """The values of a node's widgets by name; a widget that is newer than the file keeps its
    default.

    ``primitives``: the values that primitive nodes put into widgets.
    """
    saved = node.get("widgets_values") or []
    known = widgets(info, saved)
    values = _by_name(known, saved)
    _check_combos(node, info, values)
    changed = {**node.get("overrides", {}), **primitives}
    if changed:  # another option of a dynamic combo shows other widgets
        values.update(changed)
        _check_combos(node, info, values)
        known = widgets(info, values)
    filled = {}
    for widget in known:
        value = values.get(widget.name, widget.default)
        if widget.in_prompt:
            filled[widget.name] = _text(value, node) if widget.dynamic_prompts else value
    return filled


def _by_name(known: list[Widget], saved: list | dict) -> dict[str, object]:
    """The saved values by the names of their widgets, as far as the file has them."""
    if isinstance(saved, dict):
        return {widget.name: saved[widget.name] for widget in known if widget.name in saved}
    return {widget.name: value for widget, value in zip(known, saved, strict=False)}


def _check_combos(node: dict, info: dict, values: dict[str, object]) -> None:
    """Raise WorkflowError where a dynamic combo has an option that the server does not have.

    What the canvas saved behind such an option cannot be assigned to inputs.
    """
    for combo, key in dynamic_combos(info, values):
        if key not in combo.keys:
            choices = ", ".join(map(str, combo.keys))
            raise WorkflowError(
                f"{key} is no {combo.name} of {_named(node)} on this ComfyUI (it has: {choices}): "
                "update ComfyUI, or choose one on the canvas and save the workflow again."
            )


def _text(value: object, node: dict) -> object:
    """A text as it is queued: without comments, and with \\{ \\| \\} as plain characters."""
    if not isinstance(value, str):
        return value
    value = _COMMENT.sub("", value)
    if _CHOICE.search(value):
        raise WorkflowError(
            f"The text of {_named(node)} has a random choice in braces: write "
            "\\{ for a plain brace."
        )
    return re.sub(r"\\([{}|])", r"\1", value)


def _named(node: dict) -> str:
    return f"{node['type']} (node {node['id']})"


class _Graph:
    """The nodes and links of a saved canvas, and the way back along them."""

    def __init__(self, workflow: dict, object_info: dict):
        self._known = object_info
        self.nodes = {node["id"]: node for node in workflow["nodes"]}
        for node in self.nodes.values():
            if node["type"].startswith(("workflow/", "workflow>")):
                raise WorkflowError(
                    f"Node {node['id']} is a group node of an older canvas: open the workflow on a "
                    "newer one, convert it to a subgraph (right click) and save the workflow "
                    "again."
                )
        links = map(as_list, filter(None, workflow.get("links") or ()))
        self.links = {link[0]: (link[1], link[2]) for link in links}
        # What a pack sends to inputs without a wire, as it saves it.
        broadcast = (workflow.get("extra") or {}).get("ue_links") or ()
        self._sent = {
            (str(one["downstream"]), int(one["downstream_slot"])): (
                one["upstream"],
                int(one["upstream_slot"]),
            )
            for one in broadcast
        }

        kinds = [
            object_info[node["type"]] for node in self.nodes.values() if node["type"] in object_info
        ]
        self.broadcasts = not self._sent and any(
            not kind.get("output") and kind.get("output_node") is False for kind in kinds
        )

        made = [kind for each in kinds for kind in each.get("output") or ()]
        slots = [
            slot.get("type")
            for node in self.nodes.values()
            for slot in (*(node.get("inputs") or ()), *(node.get("outputs") or ()))
        ]
        self._wires = {
            kind for kinds in (*made, *slots) if isinstance(kinds, str) for kind in kinds.split(",")
        }

    def is_socket(self, kind: str) -> bool:
        """Whether values of a kind come by wire: some node makes or takes them by one, or any kind
        does.
        """
        return kind == "*" or kind.startswith("COMFY_") or bool(self._wires & set(kind.split(",")))

    def sent(self, node: dict, number: int) -> list | None:
        """The node id and output index that a broadcasting node's pack has noted for an input
        without a wire, or None.

        Of what stands on the canvas alone: through reroutes and bypassed nodes too.
        """
        node_id, output = self._sent.get((str(node["id"]), number), (None, 0))
        source = next((one for key, one in self.nodes.items() if str(key) == str(node_id)), None)
        if source is None:
            return None
        if source.get("mode") == _BYPASSED or self.is_virtual(source):
            slot = (
                _bypass(source, output, "*")
                if source.get("mode") == _BYPASSED
                else self._behind(source, output)
            )
            return None if slot is None else self.origin(slot)
        return [str(source["id"]), output]

    def is_virtual(self, node: dict) -> bool:
        """Whether a node lives on the canvas only: a core one, or one that no server has
        registered, of any pack.
        """
        return node["type"] in _VIRTUAL or (
            node["type"] not in self._known and _REGISTERED not in (node.get("properties") or {})
        )

    def _behind(self, node: dict, output: int) -> dict | None:
        """The input slot that a canvas-only node hands on: its only one, or that of the node with
        the same name.
        """
        slots = node.get("inputs") or []
        if node["type"] in _VIRTUAL or len(slots) == 1:
            return _at(slots, output)
        name = next(iter(node.get("widgets_values") or ()), None)
        named = [
            one
            for one in self.nodes.values()
            if one is not node
            and self.is_virtual(one)
            and name is not None
            and one.get("widgets_values") == [name]
        ]
        setters = [one for one in named if len(one.get("inputs") or ()) == 1]
        if slots or len(setters) != 1:
            raise WorkflowError(
                f"What {_named(node)} hands on is known on the canvas only: export the workflow "
                "there with Export (API)."
            )
        return setters[0]["inputs"][0]

    def origin(self, slot: dict) -> list | None:
        """The node id and output index that feed an input slot, through reroutes and bypassed
        nodes, or None.
        """
        kind = slot.get("type", "*")
        passed = set()
        while slot is not None and slot.get("link") is not None:
            if slot["link"] in passed:
                raise WorkflowError(
                    f"Link {slot['link']} runs in a circle: connect it again and save the workflow."
                )
            passed.add(slot["link"])
            node, output = self._source(slot)
            if node.get("mode") == _BYPASSED:
                slot = _bypass(node, output, kind)
                kind = slot["type"] if slot else kind
            elif self.is_virtual(node) and node.get("mode") != _MUTED:
                slot = self._behind(node, output)
            else:
                return [str(node["id"]), output]
        return None

    def primitive_values(self, node: dict) -> dict:
        """The values that primitive nodes put into a node's widgets."""
        found = {}
        for slot in node.get("inputs") or ():
            if slot.get("link") is not None and slot.get("widget"):
                source, _ = self._source(slot)
                if source["type"] == _PRIMITIVE and source.get("widgets_values"):
                    found[slot["widget"]["name"]] = source["widgets_values"][0]
        return found

    def _source(self, slot: dict) -> tuple[dict, int]:
        node_id, output = self.links.get(slot["link"], (None, 0))
        if node_id not in self.nodes:
            raise WorkflowError(
                f"Link {slot['link']} of the input {slot['name']} leads nowhere: connect it again."
            )
        return self.nodes[node_id], output


def _bypass(node: dict, output: int, kind: str) -> dict | None:
    """The input slot that a bypassed node hands on at an output: the one opposite, else the first
    of that type.
    """
    slots = node.get("inputs") or []
    if kind in ("*", ""):
        return _at(slots, output) or _at(slots, 0)
    made = node["outputs"][output]["type"]
    fitting = [
        slot for slot in slots if _connects(slot["type"], made) and _connects(slot["type"], kind)
    ]
    opposite = _at(slots, output)
    if opposite in fitting:
        return opposite
    same = [slot for slot in slots if slot["type"] == kind]
    return _at(same or fitting, 0)


def _connects(first: str, second: str) -> bool:
    """Whether LiteGraph would connect two slot types: equal, any, or with a type in common."""
    if "*" in (first, second) or "" in (first, second):
        return True
    return bool(set(first.lower().split(",")) & set(second.lower().split(",")))


def _at(slots: list | None, index: int) -> dict | None:
    return slots[index] if slots and index < len(slots) else None
