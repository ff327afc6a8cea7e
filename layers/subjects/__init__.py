"""Cases of the layers for the lab: one module for each kind of layer."""
