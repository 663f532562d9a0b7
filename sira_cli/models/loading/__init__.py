"""From a preset to a loaded model: presets, files from the hub, weights, devices, memory."""
