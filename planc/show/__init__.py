"""Views of a plan, its graph and its layout, as text or as plain data."""
