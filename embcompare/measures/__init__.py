"""Measures: pure functions on arrays, each with a declaration that drives documentation, colours and tests."""
