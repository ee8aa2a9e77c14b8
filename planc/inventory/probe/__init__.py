"""Inspect a model by running it on the meta device. In the inventory, only this package imports torch."""
