// What the pack adds to the canvas: a panel on the nodes that are better looked at, clicked and dragged than typed.

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { refreshAll, watchCanvas } from "./canvas/panel.js";
import { keepInSight, keepRoom } from "./canvas/room.js";
import { forget } from "./canvas/server.js";
import { asWritten, sayOption, sayTitle, speak } from "./text/words.js";

// The module of each node's panel, and what adds it to a node. The front end imports every .js of the pack when it starts;
// a panel is an .mjs, imported for the first workflow or node that shows it.
const PANELS = {
  GBX_ActivationCatalog: ["widgets/network_map", (module) => module.addNetworkMap],
  GBX_ActivationCorrespondence: ["widgets/point_picker", (module) => module.addPointPicker("source_image")],
  GBX_ActivationSimilarity: ["widgets/point_picker", (module) => module.addPointPicker("image", "mask")],
  GBX_ActivationSteering: ["canvas/live_queue", (module) => module.addLiveSwitch],
  GBX_CompositionNoise: ["widgets/color_pickers", (module) => module.addColorPickers("foreground", "background")],
  GBX_EditByWords: ["widgets/edit_sliders", (module) => module.addWordSliders],
  GBX_LayerActivationTap: ["widgets/network_map", (module) => module.addNetworkMap],
  GBX_MixSteeringDirections: ["widgets/edit_sliders", (module) => module.addDirectionSliders],
  GBX_NemoLocalize: ["widgets/neuron_chart", (module) => module.addNeuronChart(false)],
  GBX_NemoNeuronMask: ["widgets/neuron_chart", (module) => module.addNeuronChart(false)],
  GBX_NeuronMaskEdit: ["widgets/neuron_chart", (module) => module.addNeuronChart(true)],
  GBX_MemorizationReport: ["widgets/compare", (module) => module.addCompare],
  GBX_OptimizeNeuronMask: ["widgets/neuron_chart", (module) => module.addNeuronChart(false)],
  GBX_Sliders: ["widgets/edit_sliders", (module) => module.addLoraSliders],
  GBX_SparseFeatureSteering: ["canvas/live_queue", (module) => module.addLiveSwitch],
  GBX_TokenHeatMap: ["widgets/word_maps", (module) => module.addWordMaps],
  GBX_TrainLoraImmiscible: ["widgets/live_curve", (module) => module.addLiveCurve],
  GBX_TrainSlider: ["widgets/live_curve", (module) => module.addLiveCurve],
  GBX_W2WEdit: ["widgets/edit_sliders", (module) => module.addEditSliders],
  GBX_W2WInvert: ["widgets/live_curve", (module) => module.addLiveCurve],
  GBX_W2WSheet: ["widgets/compare", (module) => module.addCompare],
  GBX_W2WTrainSpace: ["widgets/live_curve", (module) => module.addLiveCurve],
};
const loaded = new Map(); // by its address, the module of a panel
// The title of a template to open, which `run.py serve` asks for: the front end's own ?template= takes no spaces.
let wanted = new URLSearchParams(location.search).get("glassbox");
const [, PACK] = new URL(import.meta.url).pathname.match(/\/extensions\/([^/]+)\//);
// How a help page names the file of a workflow or a blueprint, from where the page lies, which front end 1.58 puts before it:
// the server has no such address.
const LINKED = /(?:^|\/extensions\/([^/]+)\/docs\/)\.\.\/\.\.\/(workflows|subgraphs)\/(.+)\.json$/;

app.registerExtension({
  name: "glassbox.panels",
  async setup() {
    const href = new URL("./glassbox.css", import.meta.url).href;
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
    watchCanvas();
    document.addEventListener("click", openLinked, true);
    saveAsWritten(app.graph);
    await speak(app.extensionManager?.setting.get("Comfy.Locale"));
  },
  /** A workflow is opened: its panels are there before its nodes, which then get them at once. */
  async beforeConfigureGraph(graph) {
    const graphs = [graph, ...(graph?.definitions?.subgraphs ?? [])];
    await Promise.all(graphs.flatMap(({ nodes }) => nodes ?? []).map(({ type }) => load(type)));
  },
  afterConfigureGraph() {
    if (app.graph.extra?.glassbox) translate(app.graph); // the mark of the pack's own: others' titles stay theirs
    keepRoom();
    keepInSight();
    if (wanted) openTemplate(wanted).catch(console.error);
    wanted = null;
  },
  nodeCreated(node) {
    if (PANELS[node.comfyClass]) addPanelTo(node);
    if (node.comfyClass === "PreviewAny") keepLines(node);
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

/** Opens a workflow of the pack by its file's name below workflows/, without .json. */
async function openTemplate(name) {
  const address = name.split("/").map(encodeURIComponent).join("/");
  const answer = await api.fetchApi(`/workflow_templates/${PACK}/${address}.json`);
  await app.loadGraphData(await answer.json(), true, true, name.split("/").at(-1));
}

/** Opens a blueprint of the pack by its name, as a workflow of one node. */
async function openBlueprint(name) {
  const blueprints = await (await api.fetchApi("/global_subgraphs")).json();
  const named = (blueprint) => blueprint.name === name && blueprint.info.node_pack === `custom_nodes.${PACK}`;
  const [id] = Object.entries(blueprints).find(([, blueprint]) => named(blueprint));
  const { data } = await (await api.fetchApi(`/global_subgraphs/${id}`)).json();
  await app.loadGraphData(JSON.parse(data), true, true, name);
}

/** A workflow or a blueprint that a help page links to is opened on the canvas. */
function openLinked(event) {
  const [, pack = PACK, folder, name] = event.target.closest?.("a")?.getAttribute("href")?.match(LINKED) ?? [];
  if (!name || pack !== PACK) return;
  event.preventDefault();
  event.stopPropagation();
  const open = folder === "subgraphs" ? openBlueprint : openTemplate;
  open(decodeURIComponent(name)).catch(console.error);
}

/** Imports the module of a node's panel, if it has one. */
async function load(type) {
  const [address] = PANELS[type] ?? [];
  if (address && !loaded.has(address)) loaded.set(address, await import(`./${address}.mjs`));
}

function addPanelTo(node) {
  const [address, adder] = PANELS[node.comfyClass];
  if (loaded.has(address)) return adder(loaded.get(address))(node);
  return load(node.comfyClass).then(() => {
    adder(loaded.get(address))(node);
    const [width, height] = node.computeSize();
    node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], height)]);
    node.setDirtyCanvas(true, true);
  }, console.error);
}

/** Lines of a report stay lines in Preview Any: Markdown joins lines, but for those that end in two spaces. */
function keepLines(node) {
  const show = node.onExecuted;
  node.onExecuted = function (output) {
    const ours = app.graph.extra?.glassbox || node.getInputNode?.(0)?.comfyClass?.startsWith("GBX_");
    const text = output?.text;
    if (!ours || !text) return show?.call(this, output);
    return show?.call(this, { ...output, text: text.map((lines) => lines.replace(/(?<=\S)\n(?!\n)/g, "  \n")) });
  };
}

/** Takes from a new node the room for its advanced widgets, which Nodes 2.0 hides; one that is loaded has its own size. */
function shorten(node) {
  const hidden = LiteGraph.vueNodesMode ? (node.widgets ?? []).filter((widget) => widget.advanced).length : 0;
  if (hidden) node.setSize([node.size[0], node.size[1] - hidden * (LiteGraph.NODE_WIDGET_HEIGHT + 4)]);
}

/** What is saved of the pack's workflows, in files and images, keeps the texts that they came with. */
function saveAsWritten(graph) {
  const before = graph.onSerialize;
  graph.onSerialize = function (saved) {
    before?.apply(this, arguments);
    if (!saved.extra?.glassbox) return;
    for (const { nodes, groups } of [saved, ...(saved.definitions?.subgraphs ?? [])]) {
      for (const titled of [...groups, ...nodes]) if (titled.title) titled.title = asWritten(titled.title);
      for (const { type, widgets_values: values } of nodes) if (type === "MarkdownNote") values[0] = asWritten(values[0]);
    }
  };
}

/** Shows titles and notes of the pack's workflows in the language of the canvas. */
function translate(graph) {
  for (const titled of [...graph.groups, ...graph.nodes]) titled.title = sayTitle(titled.title);
  for (const node of graph.nodes) {
    if (node.type === "MarkdownNote") node.widgets[0].value = sayTitle(node.widgets[0].value);
    if (node.subgraph) translate(node.subgraph);
  }
}
