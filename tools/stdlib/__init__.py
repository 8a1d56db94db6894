"""The standard library's own tests, each test method compiled: what passes plainly passes compiled."""
