"""Devices as data: their peaks and memory, and how CUDA's allocator fills segments. Reads no hardware."""
