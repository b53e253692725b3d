"""Every node on every network that ComfyUI loads, in small: `python run.py models`."""
