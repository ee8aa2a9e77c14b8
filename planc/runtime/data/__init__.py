"""From text to micro-batches: sources, tokenizers, packing, sample order, loading. numpy only, no torch."""
