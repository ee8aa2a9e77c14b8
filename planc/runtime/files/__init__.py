"""The files of a run: opened as plain files only, written again if a write fails, and their names."""
