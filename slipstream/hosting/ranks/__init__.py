"""The processes of a tensor-parallel group: their places, their start, and their watch."""
