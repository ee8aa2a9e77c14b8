"""The layouts of activations and gradients between modules, inferred along the model's data flow."""
