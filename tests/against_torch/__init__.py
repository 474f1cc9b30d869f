"""Tests that run a real torch beside the simulator; skipped where torch is not installed."""
