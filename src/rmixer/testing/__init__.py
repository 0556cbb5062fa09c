"""What tests of extensions need: contract suites that a new policy gets by being listed."""
