"""How fast spaces are built, sliders move, pictures are inverted and populations trained."""
