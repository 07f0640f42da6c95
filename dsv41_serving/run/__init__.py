"""Supervise services: one in the foreground, or the whole plan on this machine."""
