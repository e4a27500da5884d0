"""Shots: whole sequences of frames to motion vectors, and what one does with them."""
