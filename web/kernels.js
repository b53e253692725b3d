// The setting that forces a backend of the pack's kernels, and its way to the server.

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";

const CHOICES = [
  { text: "as GLASSBOX_KERNELS says, else automatic", value: "environment" },
  { text: "automatic: whichever proves faster on this GPU", value: "auto" },
  { text: "PyTorch everywhere", value: "eager" },
  { text: "Triton wherever it takes the input", value: "triton" },
];

app.registerExtension({
  name: "glassbox.kernels",
  settings: [
    {
      id: "glassbox.kernels.backend",
      category: ["Glassbox", "Kernels", "Backend"],
      name: "Backend of the operations where speed decides",
      tooltip: "Outranks the environment variable GLASSBOX_KERNELS while this ComfyUI runs.",
      type: "combo",
      options: CHOICES,
      defaultValue: "environment",
      onChange: (backend) => api.fetchApi(`/glassbox/kernels?${new URLSearchParams({ backend })}`, { method: "POST" }),
    },
  ],
});
