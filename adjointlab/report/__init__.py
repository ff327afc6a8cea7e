"""The results of checks in forms for people and programs: on a terminal, in test reports, as JSON and as HTML."""
