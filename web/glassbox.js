// What the pack adds to the canvas: a panel on the nodes that are better looked at, clicked and dragged than typed.

import { app } from "../../scripts/app.js";
import { refreshAll, watchCanvas } from "./canvas/panel.js";
import { forget } from "./canvas/server.js";
import { sayOption, speak } from "./text/words.js";
import { addCompare } from "./widgets/compare.js";
import { addEditSliders } from "./widgets/edit_sliders.js";
import { addLiveCurve } from "./widgets/live_curve.js";
import { addNetworkMap } from "./widgets/network_map.js";
import { addNeuronChart } from "./widgets/neuron_chart.js";
import { addPointPicker } from "./widgets/point_picker.js";

const PANELS = {
  GBX_ActivationCatalog: addNetworkMap,
  GBX_ActivationCorrespondence: addPointPicker("source_image"),
  GBX_ActivationSimilarity: addPointPicker("image", "mask"),
  GBX_LayerActivationTap: addNetworkMap,
  GBX_NemoLocalize: addNeuronChart(false),
  GBX_NemoNeuronMask: addNeuronChart(false),
  GBX_NeuronMaskEdit: addNeuronChart(true),
  GBX_NeuronReport: addCompare,
  GBX_TrainLoraImmiscible: addLiveCurve,
  GBX_W2WEdit: addEditSliders,
  GBX_W2WInvert: addLiveCurve,
  GBX_W2WSheet: addCompare,
};

app.registerExtension({
  name: "glassbox.panels",
  setup() {
    const href = new URL("./glassbox.css", import.meta.url).href;
    speak(app.extensionManager?.setting.get("Comfy.Locale"));
    watchCanvas();
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
  },
  nodeCreated(node) {
    PANELS[node.comfyClass]?.(node);
    if (!node.comfyClass?.startsWith("GBX_")) return;
    // The front end translates names of inputs, but no options: its files of texts have no place for them.
    for (const widget of node.widgets ?? []) if (widget.type === "combo") widget.options.getOptionLabel ??= sayOption;
  },
  /** R on the canvas: the front end looks for new files. */
  refreshComboInNodes() {
    forget();
    refreshAll();
  },
});
