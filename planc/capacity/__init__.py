"""Whether a plan fits its device, and which near plans do."""
