"""The demo model: procedural scenes, training, evaluation and export. Not part of the `epe` package."""
