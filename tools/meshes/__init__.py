"""Meshes of the pack that synthetic pairs are drawn from: reader of GLB files, reduction, and the zip file."""
