"""The figures that planc prints: one function, one name and one format for each."""
