"""Wan 2.1 text to video: one stream of video rows, text by cross-attention, UniPC; on diffusers' own components."""
