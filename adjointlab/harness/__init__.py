"""The harness: subjects, cases, the engine that draws and shrinks them, and reproducers."""
