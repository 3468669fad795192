"""FLUX.2-klein: text and picture as two streams, then as one; guidance branches each alone."""
