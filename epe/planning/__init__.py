"""Who works on what next: costs and their correction, policies, forecasts, warm-up. Pure: no clock, no I/O, no torch."""
