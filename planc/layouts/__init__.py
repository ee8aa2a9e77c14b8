"""The layouts in which activations and gradients leave and reach each module, along the model's data flow."""
