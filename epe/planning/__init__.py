"""Who works on what next: costs, policies, forecasts, warm-up. Pure: no clock, no I/O, no torch."""
