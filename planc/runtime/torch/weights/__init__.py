"""A model's weights: built on the meta device, drawn or loaded by slice, converted, exported."""
