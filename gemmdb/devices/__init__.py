"""Devices: this machine's, read from its drivers, and the known GPUs, a row each."""
