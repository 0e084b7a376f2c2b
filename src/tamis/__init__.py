"""tamis: multi-stage text ranking with transformers."""
