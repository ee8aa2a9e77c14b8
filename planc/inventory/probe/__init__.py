"""What a model does, found by running it on the meta device. Of the inventory, only this imports torch."""
