"""Pictures of layouts, spaces, programs, operators and failures: one model, and renderers as text, SVG and HTML."""
