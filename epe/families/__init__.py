"""What the control plane must know of each model family: data and pure functions, no torch.

`family(name)` gives one of the eight; `FAMILIES` is all of them in the order of the documentation.
"""
