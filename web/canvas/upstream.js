// Where a node's input comes from, in and out of subgraphs.

import { hostsOf } from "./places.js";

/** The node at the other end of an input's wire, or null. */
export function sourceOf(node, name) {
  const input = node.inputs?.find((input) => input.name === name);
  return input?.link == null ? null : originOf(node.graph, input.link);
}

/** The nodes before an input, nearest first, as long as each is fed by an input of these types. */
export function chain(node, name, types) {
  const found = [];
  for (let at = sourceOf(node, name); at && !found.includes(at); ) {
    found.push(at);
    const next = at.inputs?.find((input) => input.link != null && (types.includes(input.type) || input.type === "*"));
    at = next ? sourceOf(at, next.name) : null;
  }
  return found;
}

/** The widget of a node that holds an input's value: its own, or that of its subgraph's node which stands for it. */
export function widgetOf(node, name) {
  return promoted(node, name) ?? node.widgets?.find((widget) => widget.name === name);
}

/** Whether a wire gives an input's value, so that no widget does. */
export function isWired(node, name) {
  return inputOf(node, name)?.link != null && !promoted(node, name);
}

/** The value of a widget of a node, or undefined. */
export function valueOf(node, name) {
  return widgetOf(node, name)?.value;
}

function promoted(node, name) {
  const link = linkOf(node.graph, inputOf(node, name)?.link);
  if (!link || link.origin_id !== node.graph.inputNode?.id) return null;
  const hosts = hostsOf(node.graph);
  const input = hosts[0]?.inputs[link.origin_slot];
  if (hosts.length !== 1 || !input) return null;
  const own = input.widget?.name ?? input.name;
  return promoted(hosts[0], own) ?? (input.link == null ? hosts[0].widgets?.find((widget) => widget.name === own) : null);
}

function inputOf(node, name) {
  return node.inputs?.find((input) => (input.widget?.name ?? input.name) === name);
}

function originOf(graph, id) {
  const link = linkOf(graph, id);
  if (!link) return null;
  if (link.origin_id === graph.inputNode?.id) {
    const [host] = hostsOf(graph);
    const outside = host?.inputs[link.origin_slot]?.link;
    return outside == null ? null : originOf(host.graph, outside);
  }
  const node = graph.getNodeById(link.origin_id);
  const inside = node?.subgraph?.outputs[link.origin_slot]?.linkIds?.[0];
  return node?.subgraph ? originOf(node.subgraph, inside) : node;
}

function linkOf(graph, id) {
  return id == null ? null : (graph?.links?.get?.(id) ?? graph?.links?.[id] ?? null);
}
