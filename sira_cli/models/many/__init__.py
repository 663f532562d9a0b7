"""Many pictures through a loaded model: read ahead, in batches that are halved when memory is too small."""
