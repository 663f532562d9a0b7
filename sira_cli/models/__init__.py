"""From a preset and a checkpoint to a loaded model that answers."""
