"""Menus: the configs of each kernel that a build or live tuning tries, the most promising first."""
