// Where a node's input comes from, in and out of subgraphs.

import { hostsOf } from "./places.js";

const LONGEST = 100; // wires behind each other: more run in a circle

/** The node at the other end of an input's wire, or null. */
export function sourceOf(node, name) {
  return originOf(node.graph, linkTo(node, node.inputs?.findIndex((input) => input.name === name)));
}

/** The nodes before an input, nearest first, as long as each is fed by an input of these types. */
export function chain(node, name, types) {
  const found = [];
  for (let at = sourceOf(node, name); at && !found.includes(at); ) {
    found.push(at);
    const next = at.inputs?.findIndex(({ type }, slot) => (types.includes(type) || type === "*") && linkTo(at, slot));
    at = originOf(at.graph, linkTo(at, next));
  }
  return found;
}

/** The widget of a node that holds an input's value: its own, or that of its subgraph's node which stands for it. */
export function widgetOf(node, name) {
  return promoted(node, name) ?? node.widgets?.find((widget) => widget.name === name);
}

/** Whether a wire gives an input's value, so that no widget does. */
export function isWired(node, name) {
  return linkTo(node, slotOf(node, name)) !== null && !promoted(node, name);
}

/** The value of a widget of a node, or undefined. */
export function valueOf(node, name) {
  return widgetOf(node, name)?.value;
}

function promoted(node, name) {
  const link = linkTo(node, slotOf(node, name));
  if (link === null || link.origin_id !== node.graph.inputNode?.id) return null;
  const hosts = hostsOf(node.graph);
  const input = hosts[0]?.inputs[link.origin_slot];
  if (hosts.length !== 1 || !input) return null;
  const own = input.widget?.name ?? input.name;
  if (linkTo(hosts[0], link.origin_slot)) return promoted(hosts[0], own);
  return hosts[0].widgets?.find((widget) => widget.name === own);
}

function slotOf(node, name) {
  return node.inputs?.findIndex((input) => (input.widget?.name ?? input.name) === name);
}

/** The node that a link comes from, also through a subgraph's border; null for none. */
function originOf(graph, link, passed = 0) {
  if (!link) return null;
  if (link.origin_id === graph.inputNode?.id) {
    const [host] = hostsOf(graph);
    return host ? originOf(host.graph, linkTo(host, link.origin_slot)) : null;
  }
  const node = graph.getNodeById(link.origin_id);
  if (!node?.subgraph) {
    // A node that lives on the canvas only, of any pack, says itself which link it hands on: Set and Get, reroutes.
    const handed = node?.isVirtualNode && passed < LONGEST ? node.getInputLink?.(link.origin_slot) : null;
    return handed ? originOf(graph, handed, passed + 1) : node;
  }
  return originOf(node.subgraph, node.subgraph.links.get(node.subgraph.outputs[link.origin_slot]?.linkIds[0]));
}

/** The link to an input, or null. What a subgraph's node has of that name is about its outputs. */
function linkTo(node, slot) {
  return node.graph && slot >= 0 ? LiteGraph.LGraphNode.prototype.getInputLink.call(node, slot) : null;
}
