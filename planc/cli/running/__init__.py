"""`planc run` on one rank: before the start, on screen while it runs, and when it fails or is stopped."""
