"""The problems of a build: presets, shapes files, and what they are drawn from."""
