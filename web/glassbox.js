// What the pack adds to the canvas: a panel on the nodes that are better looked at, clicked and dragged than typed.

import { app } from "../../scripts/app.js";
import { addEditSliders } from "./widgets/edit_sliders.js";
import { addNetworkMap } from "./widgets/network_map.js";

const PANELS = {
  GBX_ActivationCatalog: addNetworkMap,
  GBX_LayerActivationTap: addNetworkMap,
  GBX_W2WEdit: addEditSliders,
};

app.registerExtension({
  name: "glassbox.panels",
  setup() {
    const href = new URL("./glassbox.css", import.meta.url).href;
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
  },
  nodeCreated(node) {
    PANELS[node.comfyClass]?.(node);
  },
});
