"""How fast spaces are built, sliders move, images are inverted and populations trained."""
