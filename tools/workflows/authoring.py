"""A workflow described in a few lines: nodes by name, inputs by name, groups from left to right.

    def demo_world_text_to_image(w: Workflow) -> None:
        w.note("Prompt to image", "What one sees.", "What to know.", "What to try.")
        w.group("Model")
        model, clip, vae = w.add("GBX_LoadDemoModel")
        ...

`add` gives a node's outputs back, to be handed to the inputs of others. Inputs that are not named
keep the node's default. Positions, sizes, ids and the order of the saved values follow from the
description and from the running ComfyUI's `/object_info`. `subgraph` adds a node that holds others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tools.launcher.errors import LaunchError
from tools.launcher.widgets import Input, inputs, widgets
from tools.launcher.workflow import Kind

NOTE = "MarkdownNote"
ANY = "*"
#: ComfyUI's nodes that load models which the pack does not bring.
LOADERS = {
    "CheckpointLoaderSimple",
    "UNETLoader",
    "CLIPLoader",
    "DualCLIPLoader",
    "TripleCLIPLoader",
    "VAELoader",
}
#: Ids of the two ends inside a subgraph that stand for its inputs and its outputs.
INPUTS, OUTPUTS = -10, -20
_INNER = 100  # newer front ends want an id of its own for every node, also of those in subgraphs
_NOTE_LINES = range(3, 7)


class AuthoringError(LaunchError):
    """A description that does not fit the nodes it names."""


@dataclass(frozen=True)
class Output:
    """An output of a node in a workflow, to be given to an input of another."""

    node: Node
    slot: int
    type: str


@dataclass
class Node:
    """A node of a workflow: its values by name, and the outputs that feed its inputs by name."""

    id: int
    type: str
    info: dict
    group: int
    title: str | None = None
    size: tuple[int, int] | None = (
        None  # width and height in canvas units; None: what its widgets need
    )
    properties: dict[str, object] = field(
        default_factory=dict
    )  # what scripts of the pack keep of it
    values: dict[str, object] = field(default_factory=dict)
    sources: dict[str, Output] = field(default_factory=dict)
    inside: Subgraph | None = None  # the nodes that it stands for

    @property
    def outputs(self) -> list[Output]:
        """The node's outputs in their order."""
        return [Output(self, slot, kind) for slot, kind in enumerate(self.info["output"])]


@dataclass(frozen=True)
class Subgraph:
    """What a node of a workflow holds: other nodes, whose inputs of id ``INPUTS`` are its own, and
    their outputs.
    """

    title: str
    workflow: Workflow
    outputs: tuple[Output, ...]


class Workflow:
    """Collects the nodes and groups of one workflow."""

    def __init__(self, name: str, object_info: dict, first_id: int = 1):
        self.name, self.first_id = name, first_id
        self.nodes: list[Node] = []
        self.groups: list[str] = []
        self.extra: dict[str, object] = {}  # what the file holds beside its nodes
        # whether its groups stand side by side with straight wires, as in the first templates
        self.in_columns = False
        self.seconds: int | None = None  # of a run on two quiet CPU cores, where that is long
        self.named_kind: Kind | None = None  # what it is for, where its nodes do not say it
        self._titles: dict[str, int] = {}  # title of subgraphs -> how many have it
        self._object_info = object_info

    @property
    def kind(self) -> Kind:
        """What the workflow is for, by the nodes that are added: those that load a model's files
        need files.
        """
        if self.named_kind:
            return self.named_kind
        return Kind.CHECKPOINT if any(map(_loads_files, self.nodes)) else Kind.DEMO

    def note(self, title: str, *lines: str) -> None:
        """The note at the left that says, in three to six lines of Markdown, what one sees and what
        to try.
        """
        if len(lines) not in _NOTE_LINES:
            raise AuthoringError(
                f"The note of {self.name} has {len(lines)} lines: write three to six."
            )
        info = {
            "input": {"required": {"text": ["STRING", {"multiline": True}]}},
            "output": [],
            "output_name": [],
        }
        self._new(NOTE, info, title, None).values["text"] = "\n\n".join(lines)

    def batch(self, *maps: str, join: tuple[str, ...], chunk: int = 1) -> None:
        """How `run.py batch` runs this workflow over a list: inputs that a column fills, and how
        results are joined.
        """
        self.extra["glassbox_batch"] = {"map": list(maps), "join": list(join), "chunk": chunk}

    def app(self, *shown: str, results: tuple[str, ...]) -> None:
        """What the front end's app mode shows: inputs as "NODE.WIDGET", and output nodes; a node by
        its title or type.

        Call it last.
        """
        inputs = [input_.rpartition(".")[::2] for input_ in shown]
        self.extra["linearData"] = {
            "inputs": [[self._named(name, ends=False).id, widget] for name, widget in inputs],
            "outputs": [self._named(name, ends=True).id for name in results],
        }

    def _named(self, name: str, ends: bool) -> Node:
        """The node of that title or type that hands something on, or that hands on nothing."""
        nodes = [node for node in self.nodes if node.type != NOTE and ends != bool(node.outputs)]
        found = [node for node in nodes if name in (node.title, node.type)]
        if len(found) != 1:
            raise AuthoringError(
                f"{self.name}: {len(found)} nodes are named {name}; an app needs one."
            )
        return found[0]

    def group(self, title: str) -> None:
        """Begin the next group; the nodes added from here on stand in it."""
        self.groups.append(title)

    def add(
        self,
        type_: str,
        /,
        *,
        node_title: str | None = None,
        node_size: tuple[int, int] | None = None,
        node_properties: dict[str, object] | None = None,
        **given: object,
    ) -> Output | tuple[Output, ...]:
        """Add a node and return its outputs: the one, or a tuple; `given` are its inputs, outputs
        or plain values.
        """
        if type_ not in self._object_info:
            raise AuthoringError(f"{self.name}: ComfyUI does not know the node {type_}.")
        if not self.groups and self.first_id == 1:
            raise AuthoringError(f"{self.name}: begin a group before the node {type_}.")
        node = self._new(type_, self._object_info[type_], node_title, node_size)
        node.properties |= node_properties or {}
        return self._filled(node, given)

    def subgraph(
        self,
        title: str,
        describe: Callable[..., Output | tuple[Output, ...] | dict[str, Output]],
        **given: object,
    ) -> Output | tuple[Output, ...]:
        """Add a node that holds the nodes that ``describe(inside, **inputs)`` adds, and return its
        outputs.

        ``describe`` returns them, by name or with the names that they have inside. ``given``: its
        inputs by name; plain values are shown as the widgets inside that they are handed to. A
        title that is taken gets a number: nodes that share what they hold share their previews in
        Nodes 2.0.
        """
        number = self._titles[title] = self._titles.get(title, 0) + 1
        title = title if number == 1 else f"{title} {number}"
        kinds = [value.type if isinstance(value, Output) else ANY for value in given.values()]
        border = Node(INPUTS, "", {"output": kinds}, 0)
        first_id = self.first_id + _INNER * sum(self._titles.values())
        inside = Workflow(f"{self.name}: {title}", self._object_info, first_id)
        inside.named_kind = self.kind
        made = describe(inside, **dict(zip(given, border.outputs, strict=True)))
        shown = list(given.values())
        for (
            node
        ) in inside.nodes:  # A widget inside starts with the value that its subgraph's node shows.
            handed = {
                name: shown[output.slot]
                for name, output in node.sources.items()
                if output.node is border
            }
            node.values |= {
                name: value for name, value in handed.items() if not isinstance(value, Output)
            }
        if isinstance(made, Output):
            made = (made,)
        outputs = tuple(made.values()) if isinstance(made, dict) else made
        plain = {"control_after_generate": False}  # of a number that a wire gives
        # Front ends show the text of a widget inside even where a wire gives it.
        handed = [
            _widget(inside, slot) if kind in (ANY, "STRING") else None
            for slot, kind in enumerate(kinds)
        ]
        if any(kind == ANY and not spec for kind, spec in zip(kinds, handed, strict=True)):
            return None
        specs = [
            spec or [kind, plain | ({"forceInput": True} if kind == "STRING" else {})]
            for kind, spec in zip(kinds, handed, strict=True)
        ]
        info = {
            "input": {"required": dict(zip(given, specs, strict=True))},
            "output": [output.type for output in outputs],
            "output_name": list(made)
            if isinstance(made, dict)
            else [output.node.info["output_name"][output.slot] for output in outputs],
        }
        node = self._new(title, info, title, None)
        node.inside = Subgraph(title, inside, outputs)
        return self._filled(node, given)

    def _filled(self, node: Node, given: dict[str, object]) -> Output | tuple[Output, ...]:
        _fill(node, given, f"{self.name}: {node.type}")
        outputs = node.outputs
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _new(self, type_: str, info: dict, title: str | None, size: tuple[int, int] | None) -> Node:
        node = Node(self.first_id + len(self.nodes), type_, info, len(self.groups), title, size)
        self.nodes.append(node)
        return node


def _loads_files(node: Node) -> bool:
    """Whether a node, or one inside, loads a model's files."""
    if node.inside is None:
        return node.type in LOADERS
    return any(map(_loads_files, node.inside.workflow.nodes))


def _fill(node: Node, given: dict[str, object], where: str) -> None:
    """Give a node its inputs; raises AuthoringError for a name, a type or a gap that the node does
    not allow.
    """
    described = {input_.name: input_ for input_ in inputs(node.info)}
    unknown = sorted(set(given) - set(described))
    if unknown:
        raise AuthoringError(f"{where} has no input {unknown[0]}; it has {', '.join(described)}.")
    for input_ in described.values():
        value = given.get(input_.name)
        if isinstance(value, Output):
            _check_link(input_, value, where)
            node.sources[input_.name] = value
        elif value is not None and not input_.is_widget:
            raise AuthoringError(
                f"{where} takes an output of another node at {input_.name}, not {value!r}."
            )
        elif value is None and input_.required and not input_.is_widget:
            raise AuthoringError(f"{where} needs {input_.name}.")
    defaults = {widget.name: widget.default for widget in widgets(node.info)}
    plain = {
        name: value
        for name, value in given.items()
        if value is not None and not isinstance(value, Output)
    }
    node.values = {**defaults, **plain}


def _widget(inside: Workflow, slot: int) -> list | None:
    """The widget, if any, that an input of a subgraph is handed to, as ComfyUI describes it,
    without a control.
    """
    for node in inside.nodes:
        for input_ in inputs(node.info):
            source = node.sources.get(input_.name)
            if (
                input_.is_widget
                and source is not None
                and (source.node.id, source.slot) == (INPUTS, slot)
            ):
                return [input_.kind, {**input_.options, "control_after_generate": False}]
    return None


def _check_link(input_: Input, output: Output, where: str) -> None:
    kinds = set(input_.kind.split(",")) & set(output.type.split(","))
    if not kinds and ANY not in (input_.kind, output.type):
        raise AuthoringError(f"{where} takes {input_.kind} at {input_.name}, not {output.type}.")
