"""Runs, lints and compiles the kernel text in metal/ on a machine without a GPU."""
