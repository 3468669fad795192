"""Accepted jobs and finished results that outlive a connection and, where the stage names a folder, the service."""
