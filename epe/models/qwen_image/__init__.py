"""Qwen-Image: streams of text and picture rows, each guidance branch alone; on diffusers' own components."""
