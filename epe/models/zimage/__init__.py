"""Z-Image: one stream of picture and text rows, guidance as a batch of two; on diffusers' own components."""
