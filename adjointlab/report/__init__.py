"""The results of checks as people read them, on a terminal or in a test report, and as programs do."""
