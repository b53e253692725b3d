"""The weight space of the demo world: its population, and the paper's claims measured on it."""
