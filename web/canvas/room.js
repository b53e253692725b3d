// The pack's workflows keep room for the previews and texts of a run, for which front ends stretch a node over others.

import { app } from "../../../scripts/app.js";

const KEPT = "glassbox_preview"; // in the workflow's extra: how high a preview is in it
const BESIDE = { left: 80, top: 130, right: 40, bottom: 30 }; // pixels of the canvas below ComfyUI's bars; as in tools/workflows/layout.py
const PREVIEW = "$$canvas-image-preview"; // the widget by which the classic renderer shows one

/**
 * Shows all of a workflow of the pack that is opened for the first time, in this window and renderer. Its file holds the view
 * for a screen of 1920 x 1080, and once more under the pack's name: a view that somebody has moved and saved stays.
 */
export function keepInSight() {
  const { ds, glassbox } = app.graph.extra ?? {};
  if (!glassbox?.view || JSON.stringify(glassbox.view) !== JSON.stringify(ds)) return;
  const title = LiteGraph.NODE_TITLE_HEIGHT;
  const boxes = [
    ...app.graph.nodes.map(({ pos, size }) => [pos[0], pos[1] - title, size[0], size[1] + title]),
    ...app.graph.groups.map(({ pos, size }) => [...pos, ...size]),
  ];
  const { width, height } = app.canvas.canvas.getBoundingClientRect();
  const spans = [
    { axis: 0, start: BESIDE.left, length: width - BESIDE.left - BESIDE.right },
    { axis: 1, start: BESIDE.top, length: height - BESIDE.top - BESIDE.bottom },
  ];
  const ends = spans.map(({ axis }) => [
    Math.min(...boxes.map((box) => box[axis])),
    Math.max(...boxes.map((box) => box[axis] + box[axis + 2])),
  ]);
  const scale = Math.min(1, ...spans.map(({ axis, length }) => length / (ends[axis][1] - ends[axis][0])));
  app.canvas.ds.scale = scale;
  for (const { axis, start, length } of spans)
    app.canvas.ds.offset[axis] = (start + length / 2) / scale - (ends[axis][0] + ends[axis][1]) / 2;
  app.canvas.setDirty(true, true);
}

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
