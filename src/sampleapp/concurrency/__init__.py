"""Helpers for Deferreds and the reactor's time: slices, pauses, back-off, waiters and clocks."""
