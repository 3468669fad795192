"""HTTP in, HTTP out. It knows the engine through `Engine` alone, and no rank, lane or tensor."""
