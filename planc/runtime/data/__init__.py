"""The way from text to micro-batches: sources, tokenizers, packing, order, loading. numpy only, no torch."""
