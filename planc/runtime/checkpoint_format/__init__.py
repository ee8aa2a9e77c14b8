"""Checkpoints on disk: `step-N/` directories of safetensors files and a JSON manifest. No torch here."""
