"""What ranks know of one another: which are lost or slow, what each reads and where each is. No torch."""
