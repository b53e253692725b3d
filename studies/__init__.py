"""What the papers claim, measured; and the scripts that made every asset of the pack."""
