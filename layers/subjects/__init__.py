"""Cases of the layers for the lab: one module for each family of layers."""
