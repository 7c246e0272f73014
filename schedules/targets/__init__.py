"""Described targets, one TOML file each; its name is the target's."""
