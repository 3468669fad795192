"""FLUX.1: text and picture as two streams, later joined; guidance as an input of the model."""
