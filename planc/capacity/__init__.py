"""Whether a plan fits its device, and which similar plans do."""
