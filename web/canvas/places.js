// Where a node is: the server calls it "3", or "5:3" when it is node 3 of the subgraph that node 5 stands for.

import { app } from "../../../scripts/app.js";

/** The node at a place, or null. */
export function nodeAt(place) {
  const path = String(place).split(":");
  const graph = path.slice(0, -1).reduce((graph, host) => graph?.getNodeById(host)?.subgraph, app.graph);
  return graph?.getNodeById(path.at(-1)) ?? null;
}

/** The places of a node: several when its subgraph stands in the workflow more than once. */
export function placesOf(node) {
  return pathsTo(node.graph).map((path) => [...path, node.id].join(":"));
}

/** The nodes that stand for a subgraph. */
export function hostsOf(graph) {
  return pathsTo(graph).map((path) => nodeAt(path.join(":")));
}

/** The name of a node for the front end's own tables. */
export function locatorOf(node) {
  return node.graph === app.graph ? String(node.id) : `${node.graph?.id}:${node.id}`;
}

function pathsTo(wanted, graph = app.graph) {
  if (wanted === graph) return [[]];
  const hosts = graph.nodes.filter((node) => node.subgraph);
  return hosts.flatMap((host) => pathsTo(wanted, host.subgraph).map((path) => [host.id, ...path]));
}
