// The pack's workflows keep room for the previews and texts of a run, for which front ends stretch a node over others.

import { app } from "../../../scripts/app.js";

const KEPT = "glassbox_preview"; // in the workflow's extra: how high a preview is in it
const PREVIEW = "$$canvas-image-preview"; // the widget by which the classic renderer shows one

/** Holds what the nodes of an opened workflow show to the room that they have, if it is one of the pack's. */
export function keepRoom() {
  const height = app.graph.extra?.[KEPT];
  const root = document.documentElement;
  root.classList.toggle("glassbox-room", Boolean(height)); // for glassbox.css, in Nodes 2.0
  if (!height) return;
  root.style.setProperty("--glassbox-preview", `${height}px`);
  hold(app.graph, height);
}

function hold(graph, height) {
  for (const node of graph.nodes) {
    if (node.subgraph) hold(node.subgraph, height);
    if (node.type === "MarkdownNote") node.widgets[0].element?.classList.add("glassbox-note");
    const add = node.addCustomWidget;
    node.addCustomWidget = function (widget) {
      if (widget.name === PREVIEW) widget.computeLayoutSize = () => ({ minHeight: height, minWidth: 1 });
      return add.call(this, widget);
    };
  }
}
