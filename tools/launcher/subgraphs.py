"""Flattens the subgraphs of a saved canvas: every node inside them becomes a node of the canvas
itself.

A node 3 inside the subgraph node 7 gets the id "7:3", as the front end names it when it queues the
workflow. A value that the subgraph node shows for a widget inside goes to that widget
(``overrides``), where no link feeds it.
"""

from __future__ import annotations

from collections.abc import Iterator

#: Ids of the two nodes inside a subgraph that stand for its inputs and its outputs.
_INPUTS, _OUTPUTS = -10, -20
_UNUSED = (2, 4)  # the canvas' modes muted and bypassed: such a subgraph node stays as it is
_HOST = "-1"  # in proxyWidgets: an input of the subgraph node itself


def flattened(workflow: dict) -> dict:
    """The workflow without subgraphs: ``nodes`` with unique ids and ``links`` as [id, node, slot,
    node, slot, type].

    Raises ValueError for a subgraph that holds itself.
    """
    definitions = {
        one["id"]: one for one in (workflow.get("definitions") or {}).get("subgraphs") or ()
    }
    if not any(node["type"] in definitions for node in workflow["nodes"]):
        return workflow
    flat = _Flat(definitions)
    flat.add_level(workflow, "", ())
    return {**workflow, "nodes": flat.nodes, "links": flat.links()}


def as_list(link: list | dict) -> list:
    """A saved link as [id, origin node, origin slot, target node, target slot, type]; newer files
    hold objects.
    """
    if isinstance(link, dict):
        return [
            link.get(name)
            for name in ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
        ]
    return list(link)


class _Flat:
    """Collects plain nodes, and what feeds each of their inputs, level by level."""

    def __init__(self, definitions: dict[str, dict]):
        self._definitions = definitions
        self.nodes: list[dict] = []
        self._hosts: dict[
            str, tuple[dict, dict, str]
        ] = {}  # "7:" -> the subgraph node, its definition, outer prefix
        self._levels: dict[str, dict[int, list]] = {}  # prefix -> links by id

    def add_level(self, graph: dict, prefix: str, inside: tuple[str, ...]) -> None:
        """Add the nodes of a canvas, or of one use of a subgraph."""
        self._levels[prefix] = {
            link[0]: link for link in map(as_list, filter(None, graph.get("links") or ()))
        }
        for node in graph["nodes"]:
            definition = self._definitions.get(node["type"])
            if definition is None or node.get("mode") in _UNUSED:
                self.nodes.append({**node, "id": f"{prefix}{node['id']}", "_prefix": prefix})
                continue
            if node["type"] in inside:
                raise ValueError(
                    f"The subgraph {definition.get('name')} holds itself: open it and take that "
                    "node out."
                )
            below = f"{prefix}{node['id']}:"
            self._hosts[below] = (node, definition, prefix)
            first = len(self.nodes)
            self.add_level(definition, below, (*inside, node["type"]))
            self._override(node, definition, below, self.nodes[first:])

    def links(self) -> list[list]:
        """The links between plain nodes, numbered again; every input slot's ``link`` is set to its
        number.
        """
        made = []
        for node in self.nodes:
            prefix, slots = node.pop("_prefix"), []
            for slot, given in enumerate(node.get("inputs") or ()):
                source = None if given.get("link") is None else self._origin(prefix, given["link"])
                if source is not None:
                    made.append([len(made) + 1, *source, node["id"], slot, given.get("type", "*")])
                slots.append({**given, "link": None if source is None else len(made)})
            node["inputs"] = slots
        return made

    def _origin(self, prefix: str, link: int) -> tuple[str, int] | None:
        """The plain node and output at the beginning of a link, through the borders of subgraphs;
        None: nothing.
        """
        found = self._levels[prefix].get(link)
        if found is None:
            return f"{prefix}missing", 0  # the caller names it
        node, slot = found[1], found[2]
        if node == _INPUTS:
            host, definition, outer = self._hosts[prefix]
            socket = _socket(host, definition["inputs"][slot]["name"])
            return (
                self._origin(outer, socket["link"])
                if socket and socket.get("link") is not None
                else None
            )
        below = f"{prefix}{node}:"
        if below in self._hosts:
            inner = next(
                (
                    one
                    for one in self._levels[below].values()
                    if one[3] == _OUTPUTS and one[4] == slot
                ),
                None,
            )
            return None if inner is None else self._origin(below, inner[0])
        return f"{prefix}{node}", slot

    def _override(self, host: dict, definition: dict, below: str, nodes: list[dict]) -> None:
        """Give the values that a subgraph node shows to the widgets inside that they stand for."""
        by_id = {node["id"]: node for node in nodes}
        behind = self._widgets(definition, below)
        for name, inner, value in _shown(host, definition, set(behind)):
            for id_, widget in (
                behind.get(name, ()) if inner is None else [(f"{below}{inner}", name)]
            ):
                if id_ in by_id:
                    by_id[id_]["overrides"] = {**by_id[id_].get("overrides", {}), widget: value}

    def _widgets(self, definition: dict, below: str) -> dict[str, list[tuple[str, str]]]:
        """The widgets (flat node id, name) that each input of a subgraph leads to, at any depth, in
        the inputs' order.

        Inputs that lead to no widget are left out.
        """
        found: dict[str, list[tuple[str, str]]] = {}
        leaving = [
            link for link in map(as_list, definition.get("links") or ()) if link[1] == _INPUTS
        ]
        for slot, input_ in enumerate(definition.get("inputs") or ()):
            widgets = [
                one
                for link in leaving
                if link[2] == slot
                for one in self._behind(definition, link, below)
            ]
            if widgets:
                found[input_["name"]] = widgets
        return found

    def _behind(self, definition: dict, link: list, below: str) -> Iterator[tuple[str, str]]:
        target = next((node for node in definition["nodes"] if node["id"] == link[3]), None)
        socket = next(
            (one for one in (target or {}).get("inputs") or () if one.get("link") == link[0]), None
        )
        if socket is None:
            return
        nested = self._definitions.get(target["type"])
        if nested is not None:
            yield from self._widgets(nested, f"{below}{target['id']}:").get(socket["name"], ())
        elif socket.get("widget"):
            yield f"{below}{target['id']}", socket["widget"]["name"]


def _shown(
    host: dict, definition: dict, inputs: set[str]
) -> Iterator[tuple[str, str | None, object]]:
    """The values that a subgraph node keeps: (name, id of the node inside or None for an input,
    value).
    """
    values = host.get("widgets_values") or []
    if isinstance(values, dict):
        yield from ((name, None, value) for name, value in values.items() if name in inputs)
        return
    listed = (host.get("properties") or {}).get("proxyWidgets") or []
    if listed and len(values) == len(listed):
        for (inner, name, *_), value in zip(listed, values, strict=True):
            yield name, None if str(inner) == _HOST else str(inner), value
    elif not listed:
        owned = [one["name"] for one in definition.get("inputs") or () if one["name"] in inputs]
        yield from ((name, None, value) for name, value in zip(owned, values, strict=False))


def _socket(host: dict, name: str) -> dict | None:
    """The input slot of a subgraph node by name: the saved list may lack slots that only hold a
    widget.
    """
    return next((one for one in host.get("inputs") or () if one["name"] == name), None)
