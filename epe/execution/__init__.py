"""Runs leases on this rank's device: tasks to tensors to reports. One thread computes; the event loop never does."""
