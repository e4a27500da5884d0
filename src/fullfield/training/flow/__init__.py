"""Training of optical-flow networks: pictures, pairs made of them, losses and the loop."""
