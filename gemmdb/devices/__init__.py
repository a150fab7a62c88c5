"""Devices: detection of this machine's, and a registry of known GPUs."""
