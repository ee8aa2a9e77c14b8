"""Records of other ranks: which are lost or slow, what each reads and where each is. No torch."""
