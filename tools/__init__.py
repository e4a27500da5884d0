"""Commands for the makers of fullfield, outside the wheel: the picture pack and the Blender renders."""
