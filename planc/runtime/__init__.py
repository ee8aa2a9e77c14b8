"""Executes a graph; reads torchrun's environment in `process.py`. Never sees the front end."""
