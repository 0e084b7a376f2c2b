"""Stages and an architecture for tamis, as a package of someone else brings them: one file for each."""
