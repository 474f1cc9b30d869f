"""Collectives as programs: lists of generators, one a member, that send and receive over channels."""
