"""Everything that is written to disk and read back."""
