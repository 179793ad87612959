"""Replays of recorded programs against live servers: arms in turns, closed loops, paired results."""
