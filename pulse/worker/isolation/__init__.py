"""Isolated jobs: each in a process of its own, forked from a zygote."""
