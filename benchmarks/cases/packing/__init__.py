"""How vectors are packed in OpenEXR: size on disk against time of the CPU."""
