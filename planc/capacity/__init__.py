"""The needs of a bound plan, whether its device meets them, and which similar plans need less."""
