// What the pack adds to the canvas: a panel on the nodes that are better looked at, clicked and dragged than typed.

import { app } from "../../scripts/app.js";
import { addLiveSwitch } from "./canvas/live_queue.js";
import { refreshAll, watchCanvas } from "./canvas/panel.js";
import { keepRoom } from "./canvas/room.js";
import { forget } from "./canvas/server.js";
import { sayOption, sayTitle, speak } from "./text/words.js";
import { addCompare } from "./widgets/compare.js";
import { addDirectionSliders, addEditSliders } from "./widgets/edit_sliders.js";
import { addLiveCurve } from "./widgets/live_curve.js";
import { addNetworkMap } from "./widgets/network_map.js";
import { addNeuronChart } from "./widgets/neuron_chart.js";
import { addPointPicker } from "./widgets/point_picker.js";

const PANELS = {
  GBX_ActivationCatalog: addNetworkMap,
  GBX_ActivationCorrespondence: addPointPicker("source_image"),
  GBX_ActivationSimilarity: addPointPicker("image", "mask"),
  GBX_ActivationSteering: addLiveSwitch,
  GBX_LayerActivationTap: addNetworkMap,
  GBX_MixSteeringDirections: addDirectionSliders,
  GBX_NemoLocalize: addNeuronChart(false),
  GBX_NemoNeuronMask: addNeuronChart(false),
  GBX_NeuronMaskEdit: addNeuronChart(true),
  GBX_NeuronReport: addCompare,
  GBX_SparseFeatureSteering: addLiveSwitch,
  GBX_TrainLoraImmiscible: addLiveCurve,
  GBX_W2WEdit: addEditSliders,
  GBX_W2WInvert: addLiveCurve,
  GBX_W2WSheet: addCompare,
};

app.registerExtension({
  name: "glassbox.panels",
  async setup() {
    const href = new URL("./glassbox.css", import.meta.url).href;
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
    watchCanvas();
    await speak(app.extensionManager?.setting.get("Comfy.Locale"));
  },
  afterConfigureGraph() {
    translate(app.graph);
    keepRoom();
  },
  nodeCreated(node) {
    PANELS[node.comfyClass]?.(node);
    if (!node.comfyClass?.startsWith("GBX_")) return;
    // The front end translates names of inputs, but no options: its files of texts have no place for them.
    for (const widget of node.widgets ?? []) if (widget.type === "combo") widget.options.getOptionLabel ??= sayOption;
    shorten(node);
  },
  /** R on the canvas: the front end looks for new files. */
  refreshComboInNodes() {
    forget();
    refreshAll();
  },
});

/** Takes from a new node the room for its advanced widgets, which Nodes 2.0 hides; one that is loaded has its own size. */
function shorten(node) {
  const hidden = LiteGraph.vueNodesMode ? (node.widgets ?? []).filter((widget) => widget.advanced).length : 0;
  if (hidden) node.setSize([node.size[0], node.size[1] - hidden * (LiteGraph.NODE_WIDGET_HEIGHT + 4)]);
}

/** Shows titles and notes of the pack's workflows in the language of the canvas. */
function translate(graph) {
  for (const titled of [...graph.groups, ...graph.nodes]) titled.title = sayTitle(titled.title);
  for (const node of graph.nodes) {
    if (node.type === "MarkdownNote") node.widgets[0].value = sayTitle(node.widgets[0].value);
    if (node.subgraph) translate(node.subgraph);
  }
}
