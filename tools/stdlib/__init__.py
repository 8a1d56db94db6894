"""The standard library's own tests, each method compiled: a test that passes eagerly passes so."""
