"""Measurements a user can repeat: timing, benchmark commands, supervisor."""
